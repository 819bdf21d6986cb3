"""The corpus of real texts: each paragraph once, in an order that no path decides, with questions apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import corpus
from benchmarks.corpus import KINDS, embed_texts, load_corpus, load_summaries
from orchestrator import HashedNgrams

if TYPE_CHECKING:
    from pathlib import Path

ONE = '''"""The first paragraph of a module, which has two.

The second paragraph of this module, which is a longer text
over two lines, so that the first one sums it up.
"""

class Box:
    """A class with a docstring that is long enough."""

    def open(self):
        """Open the box, and look whether a cat is in it."""

# A comment over two lines, which together are
# long enough to count as a paragraph of text.
x = 1  # short
# ------------------------------------------------------ 123 456 789
'''
TWO = '"""The first paragraph of a module, which has two."""\n'


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the standard library; no packages are installed."""
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.setattr(corpus, "_OUT", tmp_path / "out")
    monkeypatch.setattr(corpus, "_modules", lambda origin: sorted(folder.glob("*.py")) if "standard" in origin else [])
    return folder


def test_paragraphs(modules: Path) -> None:
    """Docstrings and comments are split in paragraphs; a repeated one counts once, a broken module not at all."""
    (modules / "one.py").write_text(ONE)
    (modules / "two.py").write_text(TWO)
    (modules / "broken.py").write_text("def (")
    (modules / "latin.py").write_bytes(b"'''caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9'''")
    found = load_corpus(100, questions=1)
    assert set(found.texts) | set(found.questions) == {
        "The first paragraph of a module, which has two.",
        "The second paragraph of this module, which is a longer text over two lines, so that the first one sums it up.",
        "A class with a docstring that is long enough.",
        "Open the box, and look whether a cat is in it.",
        "A comment over two lines, which together are long enough to count as a paragraph of text.",
    }
    assert len(found.texts) == 4
    assert len(found.questions) == 1
    assert list(found.counts) == list(KINDS)
    assert sum(found.counts.values()) == 4
    ((summary, rest),) = load_summaries(10)
    assert (summary[:10], rest[:10]) == ("The first ", "The second")


def test_order(modules: Path) -> None:
    """The order depends on the texts alone, and fewer texts are the first of more."""
    (modules / "one.py").write_text(ONE)
    before = load_corpus(100, questions=1)
    assert load_corpus(2, questions=1).texts == before.texts[:2]
    (modules / "one.py").rename(modules / "zero.py")
    assert load_corpus(100, questions=1) == before


def test_vectors(modules: Path) -> None:
    """Vectors are rows in the order of the texts, and are read from a file the second time."""
    vectors = embed_texts(HashedNgrams(64), ["one", "another", "one"])
    assert vectors.shape == (3, 64)
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])
    (kept,) = corpus._OUT.glob("*.npy")
    written = kept.stat().st_mtime_ns
    assert np.array_equal(embed_texts(HashedNgrams(64), ["one", "another", "one"]), vectors)
    assert kept.stat().st_mtime_ns == written
