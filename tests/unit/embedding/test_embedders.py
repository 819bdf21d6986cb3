"""The shipped embedders: what is alike is near, the same everywhere, offline, and beside a free event loop."""

from __future__ import annotations

import math
import struct
import sys
from importlib import util
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import ConfigError, InvalidInput
from orchestrator.embedding.hashed_ngrams import HashedNgrams
from orchestrator.embedding.model import Embedder
from orchestrator.embedding.wordllama import WordLlamaEmbedder
from tests.helpers.subprocesses import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

MODEL = WordLlamaEmbedder()
EMBEDDERS = [HashedNgrams(), HashedNgrams(64), MODEL]
LETTERS = "Émile paid twice; 価格は高い. " * 3


def numbers(vector: Sequence[float] | bytes) -> tuple[float, ...]:
    """Return a vector as numbers."""
    assert isinstance(vector, bytes)
    return struct.unpack(f"<{len(vector) // 4}f", vector)


async def likeness(embedder: Embedder, question: str, *texts: str) -> list[float]:
    """Return the cosines of a question and texts."""
    asked, *others = map(numbers, await embedder.embed([question, *texts]))
    return [math.fsum(a * b for a, b in zip(asked, other, strict=True)) for other in others]


@pytest.mark.parametrize("embedder", EMBEDDERS, ids=repr)
async def test_vectors(embedder: Embedder) -> None:
    """A vector of length 1 per text, zeros for a text without content, and nothing for no text."""
    assert isinstance(embedder, Embedder)
    vectors = await embedder.embed(["refund", LETTERS, "", "x" * 100_000])
    assert [len(numbers(vector)) for vector in vectors] == [embedder.dims] * 4
    assert [math.hypot(*numbers(vector)) for vector in vectors] == pytest.approx([1, 1, 0, 1], abs=1e-5)
    assert list(await embedder.embed([])) == []
    # However texts are sent, each has its own vector.
    assert [(await embedder.embed([text]))[0] for text in ("refund", LETTERS)] == list(vectors[:2])


async def test_hashed_ngrams_compare_spelling() -> None:
    """Forms of a word are near each other, common words count little, and synonyms are far apart."""
    embedder = HashedNgrams()
    forms, synonym = await likeness(embedder, "refund", "refunds were refunded", "give the money back")
    assert forms > 0.3
    assert abs(synonym) < 0.2
    rare, common = await likeness(embedder, "where is the invoice", "invoice", "the")
    assert rare > common
    often, once = await likeness(embedder, "invoice", "invoice invoice invoice refund", "invoice refund")
    assert often > once
    assert (await embedder.embed(["NAÏVE_word"]))[0] == (await embedder.embed(["word naïve"]))[0]
    assert not any(numbers((await embedder.embed(["?! ..."]))[0]))


async def test_hashed_ngrams_are_the_same_everywhere() -> None:
    """Other processes, later versions and other machines make the vector that is stored already."""
    vector = numbers((await HashedNgrams().embed(["refund"]))[0])
    places = [(place, round(number, 3)) for place, number in enumerate(vector) if number]
    # A change of the rules needs another name of the space.
    assert HashedNgrams().name == "hashed-ngrams-1"
    assert places == [(53, 0.316), (193, 0.316), (335, 0.316), (360, 0.316), (365, 0.316), (498, 0.707)]


@settings(max_examples=30)
@given(st.text(), st.integers(64, 4096))
async def test_any_text(text: str, dims: int) -> None:
    """Any text has a vector."""
    vector = numbers((await HashedNgrams(dims).embed([text]))[0])
    assert len(vector) == dims
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5) or not any(vector)


@pytest.mark.parametrize("dims", [63, 4097, True, 256.0, "256"])
async def test_invalid_dimensions(dims: Any) -> None:
    """Other numbers of dimensions are refused."""
    with pytest.raises(InvalidInput, match="dims must be a whole number from 64 to 4096"):
        HashedNgrams(dims)


async def test_the_model_compares_meaning() -> None:
    """A text with other words of the same meaning is nearer than one that shares a word by chance."""
    alike, chance = await likeness(MODEL, "a refund for the customer", "give the buyer his money back", "a for loop")
    assert alike > chance + 0.1


async def test_the_model_is_offline() -> None:
    """It needs no network, writes no file, imports no HTTP client, and leaves the log of the process alone."""
    code = """
import logging, os, sys
import anyio
from orchestrator import WordLlamaEmbedder

def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & 3
    if writes or event in {"socket.connect", "socket.getaddrinfo"}:
        raise RuntimeError(f"{event} {args}")

async def main():
    embedder = WordLlamaEmbedder()
    sys.addaudithook(hook)
    print(len((await embedder.embed(["refund"]))[0]))
    assert not logging.getLogger().handlers
    assert not {"wordllama", "requests", "huggingface_hub"} & set(sys.modules)

anyio.run(main)
"""
    environment = {"HOME": "/nonexistent", "PATH": "/nonexistent"}
    done = await anyio.run_process([sys.executable, "-B", "-c", code], cwd=ROOT, env=environment, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"1024"), done.stderr.decode()


@pytest.mark.slow
async def test_the_model_is_that_of_its_package() -> None:
    """The vectors are those that the package makes of the same texts."""
    code = """
import pathlib, sys, warnings
warnings.simplefilter("ignore")
import wordllama
model = wordllama.WordLlama.load(cache_dir=pathlib.Path(wordllama.__file__).parent, disable_download=True)
sys.stdout.buffer.write(model.embed(["refund", "a longer text", "Zürich, 価格"], norm=True).astype("<f4").tobytes())
"""
    theirs = (await anyio.run_process([sys.executable, "-c", code])).stdout
    ours = b"".join(await MODEL.embed(["refund", "a longer text", "Zürich, 価格"]))
    assert numbers(ours) == pytest.approx(numbers(theirs), abs=1e-6)


@pytest.mark.parametrize("embedder", [HashedNgrams(), WordLlamaEmbedder()], ids=repr)
async def test_the_event_loop_stays_free(embedder: Embedder) -> None:
    """Other tasks run while many texts are embedded."""
    turns, texts = 0, [f"{LETTERS} {number}" for number in range(300)]

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await embedder.embed(texts)
        group.cancel_scope.cancel()
    assert turns > 10


async def test_concurrent_first_texts_load_one_model() -> None:
    """Tasks that embed their first texts at the same time read the model once."""
    embedder = WordLlamaEmbedder()
    models = set()

    async def embed() -> None:
        await embedder.embed(["refund"])
        models.add(id(embedder._model))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(embed)
    assert len(models) == 1


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error comes at once and says what to install."""
    find = util.find_spec
    monkeypatch.setattr(
        "orchestrator.embedding.wordllama.find_spec", lambda name: None if name == "wordllama" else find(name)
    )
    with pytest.raises(ConfigError, match=r"needs wordllama; run `pip install 'redis-orchestrator\[embedder\]'`"):
        WordLlamaEmbedder()
