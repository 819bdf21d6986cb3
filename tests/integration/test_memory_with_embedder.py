"""`Memory.with_embedder`: what is stored is embedded first, and questions are texts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import orchestrator.sync
from orchestrator import (
    Agent,
    Embedder,
    EmbeddingError,
    HashedNgrams,
    InvalidInput,
    Memory,
    MemoryQuery,
    NotFound,
    Orchestrator,
    Record,
    TaskContext,
    WordLlamaEmbedder,
)
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_PENDING
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

NOTES = ("The invoice of March is missing.", "Refunds take five days.", "The office is closed on Sundays.")
MODEL = WordLlamaEmbedder()


class Counting:
    """Embeds as `HashedNgrams` does, and counts its calls; a test makes it fail."""

    def __init__(self, name: str = "counting", dims: int = 64) -> None:
        self.name, self.dims = name, dims
        self.calls: list[list[str]] = []
        self.returns: Any = None
        self._inner = HashedNgrams(dims)

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float] | bytes]:
        """Embed."""
        self.calls.append(list(texts))
        if isinstance(self.returns, Exception):
            raise self.returns
        return await self._inner.embed(texts) if self.returns is None else self.returns


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client; no team runs."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
def embedder() -> Counting:
    """An embedder that counts its calls."""
    return Counting()


@pytest.fixture
async def memory(orc: Orchestrator, embedder: Counting) -> Memory:
    """The memory of an agent, with the embedder."""
    return orc.memory("ed").with_embedder(embedder)


def note(id_: str, content: Any, **columns: Any) -> Record:
    """A record of the kind `note`."""
    return Record(id=id_, step=1, kind="note", content=content, **columns)


async def best(memory: Memory, text: str, **options: Any) -> str | None:
    """The id of the record that is the most similar to a text."""
    found = await memory.similar(text, 1, **options)
    return found[0].record.id if found.hits else None


async def test_texts_are_stored_and_asked(memory: Memory, embedder: Counting) -> None:
    """Many records are one call of the embedder, one record and one question as well."""
    await memory.store_many([note(f"n{number}", text) for number, text in enumerate(NOTES)])
    assert embedder.calls == [list(NOTES)]
    await memory.store(note("n3", "Coffee is free."))
    assert embedder.calls[1:] == [["Coffee is free."]]
    assert await best(memory, "when do refunds arrive") == "n1"
    assert embedder.calls[2:] == [["when do refunds arrive"]]
    found = await memory.similar(NOTES[0], 2, min_score=0.9)
    assert [hit.record.id for hit in found] == ["n0"]
    assert found[0].score == pytest.approx(1, abs=1e-5)
    assert await best(memory, NOTES[0], where=MemoryQuery(kinds=("other",))) is None


async def test_the_model(orc: Orchestrator) -> None:
    """The shipped model finds a text that shares no word with the question."""
    memory = orc.memory(domain="billing").with_embedder(MODEL)
    await memory.store_many([note(f"n{number}", text) for number, text in enumerate(NOTES)])
    assert await best(memory, "give me my money back") == "n1"


async def test_the_text_of_a_content(memory: Memory, embedder: Counting) -> None:
    """A text is its own, an object has a field `text`, anything else is JSON; `text=` replaces that."""
    contents = ["plain", {"text": "a field", "n": 1}, {"text": 5}, {"näme": "x"}, [1, "two"], 7, None]
    await memory.store_many([note(f"n{number}", content) for number, content in enumerate(contents)])
    assert embedder.calls == [["plain", "a field", '{"text": 5}', '{"näme": "x"}', '[1, "two"]', "7", "null"]]
    titled = memory.with_embedder(embedder, text=lambda content: str(content["title"]))
    await titled.store(note("t", {"title": "the title", "text": "the text"}))
    assert embedder.calls[1:] == [["the title"]]
    nothing: Any = memory.with_embedder(embedder, text=lambda _: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match="text= of with_embedder must return a str, not None"):
        await nothing.store(note("u", "x"))
    assert await memory.get("u") == [None]


async def test_a_vector_of_the_caller(memory: Memory, embedder: Counting) -> None:
    """A record that brings its vector keeps it, and the embedder gets the others alone."""
    (own,) = await HashedNgrams(64).embed(["entirely different"])
    await memory.store_many([note("n0", NOTES[0], embedding=own), note("n1", NOTES[1])])
    assert embedder.calls == [[NOTES[1]]]
    assert await best(memory, "entirely different", min_score=0.99) == "n0"
    assert (await memory.similar(own, 1))[0].record.id == "n0"


async def test_an_update(memory: Memory, embedder: Counting) -> None:
    """New content gets a new vector in the same change; a new importance asks no embedder."""
    await memory.store(note("n0", NOTES[0]))
    await memory.update("n0", content=NOTES[2])
    assert await best(memory, NOTES[2], min_score=0.99) == "n0"
    assert await best(memory, NOTES[0], min_score=0.99) is None
    await memory.update("n0", importance=2.0)
    assert embedder.calls[-1] == [NOTES[0]]
    assert (await memory.similar(NOTES[2], 1))[0].record.importance == 2.0
    with pytest.raises(NotFound):
        await memory.update("n9", content=NOTES[2])
    before = len(embedder.calls)
    with pytest.raises(InvalidInput):
        await memory.update("n0", content=NOTES[0], newer_than=0)
    assert len(embedder.calls) == before


async def test_a_text_without_content(memory: Memory) -> None:
    """A content with nothing to compare is stored without a vector, and such a question is refused."""
    await memory.store_many([note("n0", "?!"), note("n1", "text")])
    found = await memory.get("n0", "n1")
    assert [record and record.has_vector for record in found] == [False, True]
    await memory.update("n1", content="...")
    assert (await memory.similar("text", 1)).hits == ()
    with pytest.raises(InvalidInput, match="nothing that the embedder could compare"):
        await memory.similar(" ")


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        (TimeoutError("no answer in 5 s"), "did not embed 2 texts: TimeoutError: no answer in 5 s"),
        (ValueError("cannot embed " + "x" * 1000), f"ValueError: cannot embed {'x' * 187}; nothing"),
        ([], "it returned 0 vectors"),
        ([[1.0] * 64], "it returned 1 vectors"),
        ([[1.0] * 64, [1.0] * 63], "a vector has 63 dimensions, and the embedder says 64"),
        ([[1.0] * 64, [float("nan")] * 64], "its vector 1 must have finite numbers"),
        ([[1.0] * 64, "text"], "its vector 1 must be numbers"),
        ([[1.0] * 64, 5], "not iterable"),
        ([b"abc", b"abcd"], "its vector 0 has 3 bytes"),
        (np.ones((2, 1, 64)), "its vector 0 must be numbers"),
        (7, "not iterable"),
    ],
)
async def test_a_failing_embedder(memory: Memory, embedder: Counting, returns: Any, says: str) -> None:
    """The error names the embedder, the number of texts and what to do; nothing is stored."""
    embedder.returns = returns
    with pytest.raises(EmbeddingError, match=says) as failed:
        await memory.store_many([note("n0", NOTES[0]), note("n1", NOTES[1])])
    assert (failed.value.embedder, failed.value.count) == ("counting", 2)
    assert "embedder 'counting'" in str(failed.value)
    assert "nothing was sent to Redis: repeat the call" in str(failed.value)
    assert failed.value.__cause__ is returns or not isinstance(returns, Exception)
    assert await memory.get("n0", "n1") == [None, None]
    embedder.returns = None
    await memory.store_many([note("n0", NOTES[0]), note("n1", NOTES[1])])
    embedder.returns = returns
    if isinstance(returns, Exception):
        with pytest.raises(EmbeddingError, match="did not embed one text"):
            await memory.similar("question")
        with pytest.raises(EmbeddingError):
            await memory.update("n0", content="new")
        (kept,) = await memory.get("n0")
        assert kept is not None
        assert kept.content == NOTES[0]


async def test_an_invalid_record_asks_no_embedder(memory: Memory, embedder: Counting) -> None:
    """What would be refused anyway costs no call."""
    with pytest.raises(InvalidInput):
        await memory.store_many([note("n0", NOTES[0]), note("n1", object())])
    with pytest.raises(InvalidInput):
        await memory.store("no record")  # type: ignore[arg-type]
    assert embedder.calls == []


async def test_another_embedder(memory: Memory, orc: Orchestrator) -> None:
    """Vectors of two embedders are not mixed, also when they have as many dimensions."""
    await memory.store(note("n0", NOTES[0]))
    other = orc.memory("ed").with_embedder(Counting("other"))
    with pytest.raises(InvalidInput, match=r"from the embedder 'counting'.*drop_vectors\(\)"):
        await other.store(note("n1", NOTES[1]))
    with pytest.raises(InvalidInput, match="agent 'ed' has vectors with 64 dimensions"):
        await other.update("n0", content=NOTES[1])
    (kept,) = await memory.get("n0")
    assert kept is not None
    assert kept.content == NOTES[0]
    assert await best(memory, NOTES[0]) == "n0"
    (vector,) = await HashedNgrams(64).embed([NOTES[0]])
    for question in (NOTES[0], vector):
        with pytest.raises(InvalidInput, match=r"from the embedder 'counting'.*ask with the same embedder"):
            await other.similar(question)
    # A vector of the caller's own, through a memory without an embedder, is compared if it has as many dimensions.
    assert (await orc.memory("ed").similar(vector, 1))[0].record.id == "n0"
    await memory.delete("n0")
    assert (await other.similar(NOTES[0])).hits == ()


class Nameless:
    """An embedder without a name."""

    dims = 64

    async def embed(self, texts: Sequence[str], /) -> list[bytes]:
        """Embed."""
        return [struct.pack("<64f", *[1.0] * 64) for _ in texts]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "an embedder has name, dims and embed"),
        (Nameless(), "an embedder has name, dims and embed"),
        (Counting(""), "name of the embedder '' is refused"),
        (Counting("a\nb"), "name of the embedder"),
    ],
)
async def test_what_is_no_embedder(orc: Orchestrator, wrong: Any, says: str) -> None:
    """It is refused before it is asked."""
    with pytest.raises(InvalidInput, match=says):
        orc.memory("ed").with_embedder(wrong)


async def test_dimensions_of_an_embedder(orc: Orchestrator, embedder: Counting) -> None:
    """An embedder without valid dimensions is refused."""
    for dims in (0, 4097, "64", None):
        embedder.dims = dims  # type: ignore[assignment]
        with pytest.raises(InvalidInput, match="dims of an embedder is a whole number from 1 to 4096"):
            orc.memory("ed").with_embedder(embedder)


async def test_a_text_needs_an_embedder(orc: Orchestrator) -> None:
    """A memory without one says how to get one."""
    with pytest.raises(InvalidInput, match=r"with_embedder\(WordLlamaEmbedder\(\)\)"):
        await orc.memory("ed").similar("text")


async def test_the_handle_is_its_own(orc: Orchestrator, memory: Memory, embedder: Counting) -> None:
    """The memory that it was made of has no embedder; `under` a lock keeps it; states are embedded, too."""
    plain = orc.memory("ed")
    plain.with_embedder(embedder)
    await plain.store(note("n0", NOTES[0]))
    assert embedder.calls == []
    async with orc.locks("agent:ed").hold("memory") as lease:
        await memory.under(lease).store(note("n1", NOTES[1]))
    assert await best(memory, NOTES[1]) == "n1"
    await memory.states().store_agent_state({"text": "in the kitchen"}, 5)
    assert embedder.calls[-1] == ["in the kitchen"]


async def test_in_a_handler(team: LocalTeam) -> None:
    """`ctx.memory` has the same, under the lock of the attempt."""
    agent, embedder = Agent("ed"), Counting()

    @agent.skill
    async def learn(ctx: TaskContext, text: str) -> str:
        """Store a text, and find it."""
        memory = ctx.memory.with_embedder(embedder)
        await memory.store(Record(step=1, kind="note", content=text), op_id=ctx.task_id)
        return str((await memory.similar(text, 1))[0].record.content)

    await team.work(agent)
    handle = await team.orc.submit("learn", {"text": NOTES[0]})
    assert await handle.result(timeout=TIMEOUT_S) == NOTES[0]
    assert isinstance(embedder, Embedder)


def test_in_a_script(settings: Settings) -> None:
    """The blocking client has the same."""
    with orchestrator.sync.Orchestrator(settings=settings) as orc:
        memory = orc.memory("ed").with_embedder(HashedNgrams())
        memory.store_many([note(f"n{number}", text) for number, text in enumerate(NOTES)])
        assert memory.similar("refund", 1)[0].record.id == "n1"


async def test_records_without_a_vector(orc: Orchestrator, memory: Memory, embedder: Counting) -> None:
    """Records of an earlier time get their vectors, in both tiers and in bounded calls; their versions stay."""
    plain = orc.memory("ed")
    await plain.store_many([note(f"s{number}", f"short {number}") for number in range(150)])
    await plain.store_many([note(f"i{number}", f"long {number}") for number in range(5)], tier="im")
    await plain.store(note("blank", "?!"))
    await memory.store(note("has", "has one"))
    del embedder.calls[:]
    assert await memory.embed_missing(limit=60) == 60
    assert [len(call) for call in embedder.calls] == [60]
    assert await memory.embed_missing() == 95
    assert max(map(len, embedder.calls)) <= 100
    assert await memory.embed_missing() == 0
    assert embedder.calls[-1] == ["?!"]
    for id_, text in (("s7", "short 7"), ("i3", "long 3"), ("has", "has one")):
        found = await memory.similar(text, 1)
        assert (found[0].record.id, found[0].record.version) == (id_, 1)
        assert found.complete
    assert (await memory.sweep(budget=10_000)).restored == 0


async def test_a_content_that_changes_meanwhile(orc: Orchestrator, memory: Memory, embedder: Counting) -> None:
    """A vector of an earlier content is not stored: the record has changed, or was deleted and stored again."""
    plain = orc.memory("ed")
    await plain.store_many([note(f"n{number}", text) for number, text in enumerate(NOTES)])

    class Slow(Counting):
        """Changes records before it answers."""

        async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float] | bytes]:
            """Embed."""
            await plain.update("n0", content="changed")
            await plain.delete("n1")
            await plain.store(note("n1", "stored again"))
            return await super().embed(texts)

    assert await plain.with_embedder(Slow()).embed_missing() == 1
    records = {record.id: record for record in await plain.get("n0", "n1", "n2") if record}
    assert {id_: record.has_vector for id_, record in records.items()} == {"n0": False, "n1": False, "n2": True}
    assert await memory.embed_missing() == 2
    assert await best(memory, "changed", min_score=0.99) == "n0"


async def test_a_failing_embedder_keeps_what_is_done(orc: Orchestrator, memory: Memory, embedder: Counting) -> None:
    """The records that an embedder has embedded before it fails have their vectors; a repeat does the others."""
    plain = orc.memory("ed")
    await plain.store_many([note(f"n{number}", f"text {number}") for number in range(150)])

    class Failing(Counting):
        """Fails from its second call on."""

        async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float] | bytes]:
            """Embed."""
            self.returns = TimeoutError() if self.calls else None
            return await super().embed(texts)

    failing = Failing()
    with pytest.raises(EmbeddingError, match="TimeoutError"):
        await plain.with_embedder(failing).embed_missing()
    assert await memory.embed_missing() == 150 - len(failing.calls[0])


async def test_another_embedder_takes_over(orc: Orchestrator, memory: Memory) -> None:
    """`drop_vectors` removes all vectors, and `embed_missing` makes those of the new embedder."""
    await memory.store_many([note(f"n{number}", f"text {number}") for number in range(250)])
    await memory.store(note("long", "kept"), tier="im")
    other = orc.memory("ed").with_embedder(Counting("other", 128))
    assert await other.embed_missing() == 0
    before = await memory.stats()
    await orc.memory("ed").store(note("bare", "bare"))
    with pytest.raises(InvalidInput, match=r"from the embedder 'counting'.*Use the same embedder, or call"):
        await other.embed_missing()
    assert await orc.memory("ed").drop_vectors() == 251
    scope = memory.scope
    parts = (VECTORS, VECTOR_SET, VECTORS_PENDING)
    assert await scope.read("EXISTS", *[scope.keys.key(part) for part in parts]) == 0
    assert (await memory.stats()).records == before.records + 1
    assert (await memory.stats()).bytes == before.bytes - 251 * 4 * 64 + len("bare") + len('"bare"')
    assert await other.embed_missing() == 252
    assert await best(other, "text 77") == "n77"
    assert await best(other, "kept") == "long"
    with pytest.raises(InvalidInput, match="the embedder 'other'"):
        await memory.store(note("n0", "text"))
    assert await orc.memory("ed").drop_vectors() == 252
    assert await orc.memory("ed").drop_vectors() == 0


async def test_invalid_limits(orc: Orchestrator, memory: Memory) -> None:
    """Limits are checked, and so is that there is an embedder."""
    for limit in (0, 100_001, True, 1.5, "7"):
        with pytest.raises(InvalidInput, match="limit must be a whole number from 1 to 100000"):
            await memory.embed_missing(limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"with_embedder\(embedder\)\.embed_missing"):
        await orc.memory("ed").embed_missing()
