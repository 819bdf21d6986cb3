"""Collects real texts from what every Python installation has: docstrings and comments of its modules.

The standard library comes first, then the installed packages. Each paragraph counts once. The order depends on the
texts alone, so that the first ones are a sample of all. `python -m benchmarks.corpus` prints how many texts there are.
"""

from __future__ import annotations

import ast
import json
import platform
import re
import sys
import sysconfig
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from orchestrator import Embedder

KINDS: Final = (
    "docstrings of the standard library",
    "comments of the standard library",
    "docstrings of installed packages",
    "comments of installed packages",
)
"""The parts of the corpus, in order."""
MIN_CHARS: Final = 40
_OUT: Final = Path(__file__).resolve().parent / "out"
_WITH_DOCSTRING: Final = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts, and others to ask with.

    Attributes:
        texts: the texts, each once.
        questions: texts of the same kind that are not among them.
        counts: number of texts of each kind.
    """

    texts: tuple[str, ...]
    questions: tuple[str, ...]
    counts: dict[str, int]

    @property
    def summary(self) -> str:
        """Number and origin of the texts, in one line."""
        parts = ", ".join(f"{count:,} from {kind}" for kind, count in self.counts.items() if count)
        return f"{len(self.texts):,} paragraphs (Python {platform.python_version()}): {parts}"


def load_corpus(count: int, questions: int = 200) -> Corpus:
    """Return up to `count` texts, and the questions.

    The files of a kind are read once per environment, and only if the kinds before it have too few texts.
    """
    taken: dict[str, str] = {}
    for kind in KINDS:
        for text in _texts_of(kind):
            taken.setdefault(text, kind)
        if len(taken) >= count + questions:
            break
    asked, texts = list(taken)[:questions], list(taken)[questions : questions + count]
    counts = Counter(taken[text] for text in texts)
    return Corpus(tuple(texts), tuple(asked), {kind: counts[kind] for kind in KINDS})


def load_summaries(count: int) -> list[tuple[str, str]]:
    """Return pairs of a summary and the text that it sums up: first paragraph and rest of a docstring."""
    pairs = {}
    for path in _modules("standard library"):
        for docstring in _docstrings(_read(path)):
            first, _, rest = docstring.partition("\n\n")
            if len(first) >= MIN_CHARS and len(rest) >= 2 * MIN_CHARS:
                pairs[" ".join(first.split())] = " ".join(rest.split())
    return sorted(pairs.items(), key=lambda pair: _order(pair[0]))[:count]


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors of texts as rows. A file keeps them for the next run."""
    import numpy as np

    digest = blake2b("\0".join([embedder.name, *texts]).encode(errors="replace"), digest_size=8).hexdigest()
    path = _OUT / f"vectors-{embedder.dims}-{digest}.npy"
    if not path.exists():
        rows: list[Any] = []
        for start in range(0, len(texts), _BATCH):
            found = anyio.run(partial(embedder.embed, texts[start : start + _BATCH]))
            rows += [np.frombuffer(row, "<f4") if isinstance(row, bytes) else np.array(row, "<f4") for row in found]
        _OUT.mkdir(exist_ok=True)
        draft = path.with_suffix(".draft.npy")
        np.save(draft, np.array(rows))
        draft.replace(path)
    vectors: NDArray[np.float32] = np.load(path)
    return vectors


# --------------------------------------------------------------------------------------------------------------- files


def _texts_of(kind: str) -> list[str]:
    form, _, origin = kind.partition(" of ")
    origin = origin.removeprefix("the ")
    paths = _modules(origin)
    known = f"{platform.python_version()} {kind} {[str(path) for path in paths]}"
    kept = _OUT / f"texts-{blake2b(known.encode(), digest_size=8).hexdigest()}.json"
    if not kept.exists():
        find = _docstrings if form == "docstrings" else _comments
        texts = {text for path in paths for block in find(_read(path)) for text in _paragraphs(block)}
        _OUT.mkdir(exist_ok=True)
        draft = kept.with_suffix(".draft")
        draft.write_text(json.dumps(sorted(texts, key=_order)), encoding="utf-8")
        draft.replace(kept)
    found: list[str] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _modules(origin: str) -> list[Path]:
    paths = sysconfig.get_paths()
    if origin == "standard library":
        roots = [Path(paths["stdlib"])]
        return sorted(path for root in roots for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return sorted(path for root in {paths["purelib"], paths["platlib"]} for path in Path(root).rglob("*.py"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # the standard library has modules in other encodings, to test with
        return ""


def _docstrings(source: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError):  # and modules that are wrong, likewise
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, _WITH_DOCSTRING) and (text := ast.get_docstring(node)):
            yield text
        nodes += [child for child in getattr(node, "body", ()) if isinstance(child, ast.stmt)]


def _comments(source: str) -> Iterator[str]:
    block: list[str] = []
    for line in [*source.splitlines(), ""]:
        text = line.strip()
        if text.startswith("#"):
            block.append(text.lstrip("#!").strip())
        elif block:
            yield "\n".join(block)
            block = []


def _paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", text):
        # Rulers and tables of numbers are no text.
        if len(joined := " ".join(part.split())) >= MIN_CHARS and sum(map(str.isalpha, joined)) * 2 >= len(joined):
            yield joined


def _order(text: str) -> bytes:
    return blake2b(text.encode(errors="replace"), digest_size=8).digest()


def _print_counts(counts: Iterable[int]) -> None:
    for count in counts:
        corpus = load_corpus(count)
        lengths = sorted(map(len, corpus.texts))
        print(f"{corpus.summary}; {lengths[len(lengths) // 2]} characters in the middle, {lengths[-1]:,} at most")


if __name__ == "__main__":
    _print_counts(map(int, sys.argv[1:] or ("10000", "100000")))
