"""Extraction: tasks store what an extractor finds in a chat, each fact once, with where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import (
    Agent,
    Extraction,
    Fact,
    HashedNgrams,
    InvalidInput,
    Memory,
    Message,
    Provenance,
    Record,
    Rule,
    RuleExtractor,
    TaskContext,
    TaskFailed,
    TaskState,
    sync,
)
from orchestrator.extraction import running
from orchestrator.extraction.submitting import plan_extraction
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.text_scan import keys_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator import RecordChange, StoredRecord, TaskHandle, Turn
    from tests.helpers.local_team import LocalTeam

DRINK = Rule(name="drink", kind="preference", pattern=r"\bI prefer (?P<value>tea|coffee)\b", key="drink")


class Noting:
    """An extractor that notes what it got, makes a fact of each message of the user, and fails when told to."""

    name, version = "noting", "1"

    def __init__(self) -> None:
        self.got: list[list[list[int]]] = []
        self.failing = False

    async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
        """Make a fact of each message."""
        self.got.append([[message.number for message in turn.messages] for turn in turns])
        if self.failing:
            raise ConnectionError("the model is away")
        return [
            Fact(kind="said", content=message.text, messages=[message.id], confidence=0.5)
            for turn in turns
            for message in turn.messages
            if message.role == "user"
        ]


def says(text: str, subject: str | None = None, role: str = "user", **more: Any) -> Message:
    """A message."""
    return Message({"role": role, "content": text}, subject=subject, **more)


async def extract(team: LocalTeam, session: str = "s", **options: Any) -> Extraction:
    """Submit a task, and return its result."""
    handle: TaskHandle[Extraction] | None = await team.orc.extract(session, agent="ed", **options)
    assert handle is not None
    return await handle.result(TIMEOUT_S)


async def stored(team: LocalTeam, kind: str = "said") -> list[StoredRecord]:
    """The records of a kind, in the order in which they were said."""
    return await team.orc.memory("ed").history(1000, kind=kind)


@pytest.fixture
async def noting(team: LocalTeam) -> Noting:
    """The extractor of the agent `ed`, in batches of three messages."""
    agent, extractor = Agent("ed"), Noting()
    agent.extracts(extractor, batch=3, max_attempts=2, backoff=0.01)
    await team.work(agent)
    return extractor


async def test_rules(team: LocalTeam) -> None:
    """Facts that were said literally are in the memory of the agent, with where they come from."""
    agent = Agent("ed")
    agent.extracts(RuleExtractor())
    await team.work(agent)
    chat = team.orc.chat("s 1", "mail")
    await chat.append(
        [
            says("Hi. My name is Ann Lee.", "ann", id="m1"),
            says("Please always knock! Please never call.", "ann", id="m2"),
        ]
    )
    done = await extract(team, "s 1", source="mail")
    assert done == Extraction("s 1", "mail", 0, 2, read=2, records=3)
    (name,) = await stored(team, "person")
    assert (name.content, name.subject, name.tier) == (
        {"text": "My name is Ann Lee.", "value": "Ann Lee"}, "ann", "im",
    )  # fmt: skip
    messages = await chat.page(before=9)
    origin = Provenance.of(name)
    assert origin == Provenance(
        session="s 1", source="mail", messages=("m1",), numbers=(1,), at_ms=messages[0].at_ms, place=0,
        extractor="rules", version=RuleExtractor().version, key="name", rule="name",
    )  # fmt: skip
    assert origin.at == messages[0].at
    assert name.step == origin.at_ms // 1000
    rules = await team.orc.memory("ed").history(kind="instruction")
    assert [rule.content["value"] for rule in rules] == ["always knock", "never call"]
    await team.orc.memory("ed").store(Record(step=1, kind="other", content=1, id="own"))
    assert Provenance.of((await team.orc.memory("ed").get("own"))[0]) is None  # type: ignore[arg-type]


async def test_a_newer_fact_replaces_the_older(team: LocalTeam) -> None:
    """Of two facts of a key about a person, recalls return the later one, in whatever order they are extracted."""
    agent = Agent("ed")
    agent.extracts(RuleExtractor([DRINK, *RuleExtractor.defaults]))
    await team.work(agent)
    memory = team.orc.memory("ed")
    await team.orc.chat("a").append([says("I prefer tea.", "ann"), says("I prefer tea", "bob"), says("I prefer tea")])
    await anyio.sleep(0.002)  # the next messages are of a later millisecond
    await team.orc.chat("b").append([says("I prefer coffee.", "ann"), says("I prefer coffee")])
    later = await extract(team, "b")
    assert (later.records, later.superseded) == (2, 0)
    earlier = await extract(team, "a")
    assert (earlier.records, earlier.superseded) == (3, 1)
    assert {(r.subject, r.action): r.content["value"] for r in await memory.of_kind("preference")} == {
        ("ann", "drink"): "coffee",
        ("bob", "drink"): "tea",
        (None, "drink of a"): "tea",
        (None, "drink of b"): "coffee",
    }
    (coffee,) = [r for r in await memory.of_action("drink") if r.subject == "ann"]
    await team.orc.chat("a").append([says("I prefer tea after all.", "ann")])
    assert (await extract(team, "a")).superseded == 1
    (tea,) = [r for r in await memory.of_action("drink") if r.subject == "ann"]
    assert tea.content["text"] == "I prefer tea after all."
    (old,) = await memory.get(coffee.id)
    assert old is not None
    assert old.superseded_by == tea.id


async def test_the_same_turns_are_submitted_once(team: LocalTeam, noting: Noting) -> None:
    """While nothing is added, a submit returns the same task; then none; then one for the new messages alone."""
    chat = team.orc.chat("s")
    await chat.append([says("one"), says("two")])
    team_of_three = [await team.orc.extract("s", agent="ed") for _ in range(3)]
    first = team_of_three[0]
    assert first is not None
    assert await first.result(TIMEOUT_S) == Extraction("s", "main", 0, 2, read=2, records=2)
    assert {each.id for each in team_of_three if each is not None} == {first.id}
    assert await team.orc.extract("s", agent="ed") is None
    await chat.append([says("three")])
    assert await extract(team) == Extraction("s", "main", 2, 3, read=1, records=1)
    assert noting.got == [[[1], [2]], [[3]]]
    assert [r.content for r in await stored(team)] == ["one", "two", "three"]
    assert (await chat.head()).extracted == {"ed/extract": 3}


async def test_tasks_of_a_chat_follow_each_other(team: LocalTeam, noting: Noting) -> None:
    """A task whose range overlaps with that of the one before extracts only what that one has left."""
    chat = team.orc.chat("s")
    await team.stop_workers()
    await chat.append([says("one")])
    first = await team.orc.extract("s", agent="ed")
    await chat.append([says("two")])
    second = await team.orc.extract("s", agent="ed")
    assert first is not None
    assert second is not None
    agent = Agent("ed")
    agent.extracts(noting)
    await team.work(agent)
    assert await second.result(TIMEOUT_S) == Extraction("s", "main", 1, 2, read=1, records=1)
    assert noting.got == [[[1]], [[2]]]


async def test_batches_are_whole_turns(team: LocalTeam, noting: Noting) -> None:
    """An extractor gets whole turns, up to its batch; a longer turn in parts; the chat notes each batch."""
    chat = team.orc.chat("s")
    await chat.append([says("q1"), says("a1", role="assistant"), says("q2"), says("a2", role="assistant")])
    await chat.append([says(f"p{number}") for number in range(4)], turn="long")
    await chat.append([says("q3")], turn="t3")
    done = await extract(team)
    assert noting.got == [[[1, 2]], [[3, 4]], [[5, 6, 7]], [[8], [9]]]
    assert (done.read, done.records) == (9, 7)


@pytest.mark.parametrize("settings", [{"chat__max_messages": 4}], indirect=True)
async def test_what_is_gone_is_counted(team: LocalTeam, noting: Noting) -> None:
    """Messages that were trimmed, erased or popped before they were extracted are counted in the result."""
    chat = team.orc.chat("s")
    await chat.append([says(str(number), "eve" if number == 8 else None) for number in range(1, 11)])
    await team.stop_workers()
    handle = await team.orc.extract("s", agent="ed")
    assert handle is not None
    await chat.pop()
    assert (await team.orc.subjects.erase("eve", asked_by="t")).messages == 1
    agent = Agent("ed")
    agent.extracts(noting)
    await team.work(agent)
    assert await handle.result(TIMEOUT_S) == Extraction("s", "main", 0, 10, read=2, missed=8, records=2)
    assert [r.content for r in await stored(team)] == ["7", "9"]
    assert await team.orc.extract("s", agent="ed") is None
    await chat.append([says("new 10")])
    assert (await extract(team)).after == 9, "the note covers nothing that came after the read"
    await chat.clear()
    assert await team.orc.extract("s", agent="ed") is None
    await chat.append([says("11")])
    await chat.clear()
    assert await extract(team) == Extraction("s", "main", 10, 11, missed=1)


async def test_a_dead_letter_and_its_replay(team: LocalTeam, noting: Noting) -> None:
    """An extractor that raises makes a dead letter, whose retry extracts; one that comes too late changes nothing."""
    chat = team.orc.chat("s")
    await chat.append([says("one")])
    noting.failing = True
    failed = await team.orc.extract("s", agent="ed")
    assert failed is not None
    with pytest.raises(TaskFailed, match="the model is away"):
        await failed.result(TIMEOUT_S)
    again = await team.orc.extract("s", agent="ed")
    assert again is not None
    assert (again.id, (await failed.status()).state) == (failed.id, TaskState.DEAD)
    assert len(noting.got) == 2
    await chat.append([says("two")])
    late = await team.orc.extract("s", agent="ed")
    assert late is not None
    with pytest.raises(TaskFailed):
        await late.result(TIMEOUT_S)
    noting.failing = False
    await late.retry("repaired")
    assert await late.result(TIMEOUT_S) == Extraction("s", "main", 0, 2, read=2, records=2)
    await failed.retry("repaired")
    assert await failed.result(TIMEOUT_S) == Extraction("s", "main", 1, 1)
    assert (await chat.head()).extracted == {"ed/extract": 2}
    assert [r.content for r in await stored(team)] == ["one", "two"]


async def test_erasure_finds_the_records(team: LocalTeam, noting: Noting) -> None:
    """A record is about the person of its messages, of their turn, or of the submit; an erasure removes all of them."""
    chat = team.orc.chat("s")
    await chat.append([says("planted7x", "ann")])
    await extract(team)
    await team.orc.chat("t").append([says("planted7x, too"), says("noted", "ann", role="assistant")], turn="t1")
    await extract(team, "t")
    await team.orc.subjects.assign("ann", session="u")
    await team.orc.chat("u").append([says("planted7x, as well")])
    await extract(team, "u", subject="ann")
    assert [r.subject for r in await stored(team)] == ["ann"] * 3
    report = await team.orc.subjects.erase("ann", asked_by="ticket 1")
    assert (report.records, report.left) == (3, [])
    await team.orc.chat("t").clear()
    assert keys_with(team.settings, "planted7x") == []


async def test_a_person_who_is_erased_meanwhile(team: LocalTeam) -> None:
    """Nothing is stored about a person who is erased between read and store; the others are stored."""

    class Erasing(Noting):
        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            await team.orc.subjects.erase("eve", asked_by="t")
            return await super().extract(turns)

    agent = Agent("ed")
    agent.extracts(Erasing())
    await team.work(agent)
    await team.orc.chat("s").append([says("planted7x", "eve"), says("stays", "bob")])
    done = await extract(team)
    assert (done.records, done.erased) == (1, 1)
    assert [r.content for r in await stored(team)] == ["stays"]
    assert keys_with(team.settings, "planted7x") == []


@pytest.mark.parametrize("read_again_after_s", [0.0, 300.0])
async def test_an_extractor_that_takes_longer_than_an_erasure(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, read_again_after_s: float
) -> None:
    """The messages are read again, because an erasure may have ended meanwhile. The twin stores what is gone."""

    class Emptying(Noting):
        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            await team.orc.chat("s").clear()
            await team.orc.chat("s").append([says("new")])
            return await super().extract(turns)

    monkeypatch.setattr(running, "READ_AGAIN_AFTER_S", read_again_after_s)
    agent = Agent("ed")
    agent.extracts(Emptying())
    await team.work(agent)
    await team.orc.chat("s").append([says("gone")])
    assert (await extract(team)).records == (0 if read_again_after_s == 0 else 1)


async def test_facts_about_several_people(team: LocalTeam, noting: Noting) -> None:
    """A record has one person, so that a fact whose messages are about two is refused and counted."""
    await team.orc.chat("s").append([says("a", "ann"), says("b"), says("c", "bob")], turn="t1")
    done = await extract(team)
    assert (done.records, done.refused) == (2, 1)
    assert {r.subject for r in await stored(team)} == {"ann", "bob"}


async def test_wrong_facts(team: LocalTeam) -> None:
    """A fact that cannot be stored makes a dead letter that names what is wrong; the chat notes nothing."""
    wrong: dict[str, Any] = {
        "name messages of the turns by their ids, not .'other'": Fact(kind="k", content=1, messages=["other"]),
        "name messages of the turns by their ids, not ..$": Fact(kind="k", content=1, messages=[]),
        "not 5$": Fact(kind="k", content=1, messages=5),  # type: ignore[arg-type]
        r"not \[\['m'\]\]$": Fact(kind="k", content=1, messages=[["m"]]),  # type: ignore[list-item]
        "has more than 128 bytes": Fact(kind="k", content=1, messages=["m"], key="x" * 200),
        "from 0 to 1, not 1.5": Fact(kind="k", content=1, messages=["m"], confidence=1.5),
        "a fact of extractor 'noting' cannot be stored: kind ''": Fact(kind="", content=1, messages=["m"]),
        "must return facts": {"kind": "k"},
    }

    class Wrong(Noting):
        def __init__(self, fact: Any) -> None:
            super().__init__()
            self.fact = fact

        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            return [self.fact]

    agent = Agent("ed")
    for number, fact in enumerate(wrong.values()):
        agent.extracts(Wrong(fact), name=f"skill-{number}", max_attempts=1)
    await team.work(agent)
    await team.orc.chat("s").append([says("x", id="m")])
    for number, message in enumerate(wrong):
        with pytest.raises(TaskFailed, match=message):
            await extract(team, skill=f"skill-{number}")
    assert (await team.orc.chat("s").head()).extracted == {}


async def test_what_is_refused(team: LocalTeam) -> None:
    """Options that cannot be are refused where they are given."""
    agent = Agent("ed")
    for wrong, options in [
        ("give an extractor", {}),
        ("batch", {"batch": 0}),
        ("tier", {"tier": "x"}),
        ("give an embedder", {"embedder": 1}),
    ]:
        with pytest.raises(InvalidInput, match=wrong):
            agent.extracts(object() if not options else Noting(), **options)  # type: ignore[arg-type]
    for names in ({"agent": "no agent"}, {"agent": "ed", "skill": "no skill"}, {"agent": "ed", "subject": ""}):
        with pytest.raises(InvalidInput):
            await team.orc.extract("s", **names)


async def test_a_chat_that_began_anew(team: LocalTeam, noting: Noting) -> None:
    """Numbers that a chat has used before its end name other messages: they are another task."""
    chat = team.orc.chat("s")
    await chat.append([says("one")])
    await extract(team)
    for part in ("meta", "q", "id"):
        scope = chat._scope
        await team.services.store.execute("DEL", scope.keys.key(scope.keys.chat_part("main", part)))
    await chat.append([says("another one")])
    assert await extract(team) == Extraction("s", "main", 0, 1, read=1, records=1)
    assert [r.content for r in await stored(team)] == ["one", "another one"]
    plan = await plan_extraction(chat, agent="ed", skill="other", subject=None)
    assert plan is not None
    assert plan.args == {"source": "main", "after": 0, "upto": 1, "subject": None}


async def test_a_chat_that_lost_its_note(team: LocalTeam, noting: Noting) -> None:
    """Its messages are extracted again, and what was stored stays as it was changed since."""
    chat, memory = team.orc.chat("s"), team.orc.memory("ed")
    await chat.append([says("one"), says("two")])
    await extract(team)
    one, two = await stored(team)
    await memory.supersede(one.id, two.id)
    await memory.update(two.id, content="changed")
    scope = chat._scope
    await team.services.store.execute("HDEL", scope.keys.key(scope.keys.chat_part("main", "meta")), "x:ed/extract")
    await chat.append([says("three")])
    done = await extract(team)
    assert done == Extraction("s", "main", 0, 3, read=3, records=1, repeated=2)
    assert [r.content for r in await stored(team)] == ["changed", "three"]


async def test_messages_that_change_while_they_are_extracted(team: LocalTeam) -> None:
    """A message that got the number of a popped one meanwhile is extracted by the next task."""

    class Popping(Noting):
        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            if not self.got:
                await team.orc.chat("s").pop()
                await team.orc.chat("s").append([says("other")])
            return await super().extract(turns)

    agent = Agent("ed")
    agent.extracts(Popping())
    await team.work(agent)
    await team.orc.chat("s").append([says("one"), says("popped")])
    await extract(team)
    assert await extract(team) == Extraction("s", "main", 1, 2, read=1, records=1)
    assert [r.content for r in await stored(team)] == ["one", "popped", "other"]


async def test_another_writer_supersedes_the_newest(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose newest fact is replaced between its read and its change reads again, in the same attempt."""
    agent, supersede, later = Agent("ed", concurrency=2), Memory.supersede, list[str]()
    agent.extracts(RuleExtractor([DRINK]))
    await team.work(agent)
    await team.orc.chat("a").append([says("I prefer tea", "ann"), says("I prefer coffee", "ann")])
    await anyio.sleep(0.002)  # the next message is of a later millisecond
    await team.orc.chat("b").append([says("I prefer tea", "ann")])

    async def late(memory: Memory, old: str, by: str | None) -> RecordChange:
        if not later:
            later.append("b")
            await extract(team, "b")
        return await supersede(memory, old, by)

    monkeypatch.setattr(Memory, "supersede", late)
    handle = await team.orc.extract("a", agent="ed")
    assert handle is not None
    await handle.result(TIMEOUT_S)
    assert (await handle.info()).attempts == 1
    (latest,) = await team.orc.memory("ed").of_action("drink")
    origin = Provenance.of(latest)
    assert origin is not None
    assert origin.session == "b"


async def test_from_a_handler(team: LocalTeam) -> None:
    """A handler submits the extraction of its turn as a child, by its own agent if it names no other."""
    agent = Agent("ed", concurrency=2)
    agent.extracts(RuleExtractor())

    @agent.skill
    async def answer(ctx: TaskContext, text: str) -> list[int | None]:
        await ctx.chat.append([says(text)], turn=ctx.task_id)
        child = await ctx.extract()
        done = None if child is None else await child.result()
        return [None if done is None else done.records, None if await ctx.extract() is None else 1]

    await team.work(agent)
    task = await team.orc.submit("answer", {"text": "My name is Ann."}, session="s")
    assert await task.result(TIMEOUT_S) == [1, None]


async def test_recall_by_meaning(team: LocalTeam) -> None:
    """With an embedder, the records have vectors, so that a question in other words finds them."""
    agent, embedder = Agent("ed"), HashedNgrams()
    agent.extracts(RuleExtractor(), embedder=embedder)
    await team.work(agent)
    await team.orc.chat("s").append([says("I prefer green tea."), says("Please never call before nine.")])
    await extract(team)
    found = await team.orc.memory("ed").with_embedder(embedder).similar("which tea does she prefer", k=1)
    assert [each.record.content["value"] for each in found] == ["green tea"]


async def test_concurrent_chats_of_a_person(team: LocalTeam) -> None:
    """Of facts of a key that many tasks store at once, one is left in recalls: the latest."""
    agent = Agent("ed", concurrency=20)
    agent.extracts(RuleExtractor([DRINK]))
    await team.work(agent)
    for number in range(12):
        await team.orc.chat(f"s{number}").append([says(f"I prefer {'tea' if number < 11 else 'coffee'}", "ann")])
    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(extract, team, f"s{number}")
    found = await team.orc.memory("ed").of_action("drink")
    assert len(found) == 1
    pages = {f"s{number}": await team.orc.chat(f"s{number}").page(before=2) for number in range(12)}
    newest = max((messages[0].at_ms, session) for session, messages in pages.items())
    origin = Provenance.of(found[0])
    assert origin is not None
    assert (origin.at_ms, origin.session) == newest


def test_the_blocking_client(running_server: Any, prefix: str) -> None:
    """The blocking client has the same call."""
    with sync.Orchestrator(running_server("newest").url, prefix=prefix) as orc:
        assert orc.extract("s", agent="ed") is None
        orc.chat("s").append([{"role": "user", "content": "x"}])
        handle = orc.extract("s", agent="ed")
        assert handle is not None
        assert handle.status().state is TaskState.READY


async def test_a_turn_that_is_extracted_in_parts(team: LocalTeam, noting: Noting) -> None:
    """The later part of a turn is about the person whom the earlier part names, so that an erasure finds it."""
    chat = team.orc.chat("s")
    await chat.append([says("other", "bob")], turn="t0")
    await chat.append([says("I live at planted9z", "ann")], turn="t1")
    await extract(team)
    await chat.append([says("number 4")], turn="t1")
    await extract(team)
    await chat.append([says("of nobody")], turn="t2")
    await extract(team)
    records = {record.content: record.subject for record in await stored(team)}
    assert records == {"other": "bob", "I live at planted9z": "ann", "number 4": "ann", "of nobody": None}


async def test_many_facts(team: LocalTeam) -> None:
    """Of 1,200 facts of one key that a message gives, more than a recall returns, the last one counts."""

    class Many(Noting):
        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            (message,) = turns[0].messages
            return [Fact(kind="said", content=number, messages=[message.id], key="n") for number in range(1200)]

    agent = Agent("ed")
    agent.extracts(Many())
    await team.work(agent)
    await team.orc.chat("s").append([says("count", "ann")])
    handle = await team.orc.extract("s", agent="ed")
    assert handle is not None
    done = await handle.result(10 * TIMEOUT_S)
    assert (done.records, done.superseded) == (1200, 1199)
    assert [record.content for record in await team.orc.memory("ed").of_action("n")] == [1199]
