"""Each change of a workspace: every status that it answers, the same call twice, a caller whose lock is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.workspace.replaying import replayed
from tests.helpers.cases import each_case
from tests.lua.workspace.space import Space, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.workspace.scripts import ChangeReply
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

CHANGES: dict[str, Callable[..., Any]] = {
    "set": lambda space, **how: space.patch(("p", "set", b"2"), **how),
    "delete": lambda space, **how: space.patch(("there", "del", b""), **how),
    "incr": lambda space, **how: space.patch(("number", "incr", b"2"), **how),
    "scratch": lambda space, **how: space.patch(("p", "set", b"2"), owner="ada", **how),
    "append": lambda space, **how: space.append("l", b"1", b"2", **how),
    "add": lambda space, **how: space.members("s", "add", "new", "old", **how),
    "remove": lambda space, **how: space.members("s", "remove", "old", **how),
    "transition": lambda space, **how: space.transition("job", "done", expect=["open"], **how),
    "publish": lambda space, **how: space.publish("draft", **how),
    "publish to a log": lambda space, **how: space.publish("draft", log="l", **how),
    "join": lambda space, **how: space.join("bob", 1000, **how),
    "leave": lambda space, **how: space.join("ada", 0, **how),
    "direct": lambda space, **how: space.direct("bob", **how),
    "acknowledge": lambda space, **how: space.acknowledge("eve", "9999999999999-1", **how),
    "clear": lambda space, **how: space.clear(**how),
}
each_change = each_case("change", CHANGES.values(), ids=CHANGES, fresh="lived_in")


class LivedIn(Space):
    """A workspace with a little of everything."""

    def _fill(self) -> None:
        super()._fill()
        self.patch(("there", "set", b'"x"'), ("number", "set", b"1"))
        self.patch(("draft", "set", b"{}"), owner="ada")
        self.append("l", b"0")
        self.members("s", "add", "old", "older")
        self.transition("job", "open")
        self.join("ada", 60_000)
        self.direct("eve")
        self.execute("XADD", self.keys.key("inbox:eve"), "9999999999999-1", "k", "STOP", "a", "", "d", "1")


@pytest.fixture
def lived_in(redis_server: RedisServer, prefix: str) -> Iterator[LivedIn]:
    """A workspace with a little of everything."""
    space = LivedIn(redis_server.url, prefix)
    yield space
    space.close()


@each_change
def test_sent_twice(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """The same change sent again answers what the first one did, and changes nothing."""
    first = change(lived_in, op="mine")
    assert first.status == "ok"
    with lived_in.unchanged():
        again = change(lived_in, op="mine")
    assert (again.status, again.revision, again.rest) == ("duplicate", first.revision, first.rest)


@each_change
def test_foreign_keys(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """Where somebody put another type under a key, a change is made as a whole, or refused as a whole."""
    names = [name for name in lived_in.names() if ":exec:" not in name]
    held = {name: lived_in.execute("DUMP", name) for name in names}
    for victim in names:
        lived_in.execute("SET", victim, "foreign", "EX", 1000)
        before = {name: lived_in.execute("DUMP", name) for name in lived_in.names()}
        try:
            change(lived_in, op=victim)
        except ServerRefused:
            assert {name: lived_in.execute("DUMP", name) for name in lived_in.names()} == before, victim
        lived_in.execute("DEL", *[name for name in lived_in.names() if ":exec:" not in name])
        for name, dump in held.items():
            lived_in.execute("RESTORE", name, 1_000_000, dump)


@each_change
def test_sent_twice_under_another_name(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """A twin: with another id the same change is made again, or at least judged again."""
    change(lived_in, op="mine")
    assert change(lived_in, op="other").status != "duplicate"


@each_change
def test_sent_again_after_the_lock_went(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """Whoever missed the answer hears that the change was made, although the lock is somebody else's by now."""
    first = change(lived_in, op="mine")
    lived_in.hold("9:t1:8:cd")
    assert change(lived_in, op="mine").rest == first.rest


@each_change
@each_case(
    "who",
    [
        Writer(value="1:t1:6:ab"),
        Writer(value="1:t1:7:ac"),
        Writer(lock="exec:t2"),
        Writer(lock="exec"),
        Writer(value=""),
        Writer(lock="x", value=""),
    ],
    ids=["generation", "nonce", "task", "session", "empty", "nothing"],
    fresh="lived_in",
)
def test_fenced(lived_in: Space, change: Callable[..., ChangeReply], who: Writer) -> None:
    """A change under a lock that does not hold just this value changes nothing, and names what it holds."""
    with lived_in.unchanged():
        answer = change(lived_in, who=who)
    present = lived_in.execute("GET", lived_in.keys.key(who.lock)) or b""
    assert (answer.status, answer.rest) == ("fenced", (present,))


MESSAGES = ("join", "leave", "direct", "acknowledge")
OTHER = "2:t9:8:ef"


@each_change
def test_occupied(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """While another owner holds the session alone, changes are refused and name it; messages between agents are not."""
    lived_in.execute("SET", lived_in.keys.key("exec"), OTHER, "PX", 60_000)
    if change in [CHANGES[name] for name in MESSAGES]:
        assert change(lived_in).status == "ok"
        return
    with lived_in.unchanged():
        answer = change(lived_in)
    assert (answer.status, answer.rest[0]) == ("occupied", OTHER.encode())
    assert 0 < answer.rest[1] <= 60_000
    assert change(lived_in, who=Writer(lock="exec", value=OTHER)).status == "ok"


@each_change
@each_case("reserved", [OTHER, "next"], ids=["own", "reserved"], fresh="lived_in")
def test_not_occupied(lived_in: Space, change: Callable[..., ChangeReply], reserved: str) -> None:
    """Twin: who holds the session alone changes it under another lock too; a lock on its way excludes none."""
    lived_in.execute("SET", lived_in.keys.key("exec"), reserved, "PX", 60_000)
    assert change(lived_in, who=Writer(exclusive=OTHER)).status == "ok"


@each_change
def test_duplicate_while_occupied(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """A repeat of a change that was made is told so, whoever holds the session by now."""
    first = change(lived_in, op="mine")
    lived_in.execute("SET", lived_in.keys.key("exec"), OTHER, "PX", 60_000)
    assert change(lived_in, op="mine").rest == first.rest


@each_change
def test_one_event(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """Each shared change tells one event with the next revision; a scratch tells none."""
    before = lived_in.events()
    answer = change(lived_in)
    told = lived_in.events()[len(before) :]
    if change is CHANGES["scratch"]:
        assert (told, answer.revision) == ([], before[-1].revision)
    else:
        assert [(event.revision, event.agent) for event in told] == [(before[-1].revision + 1, "ada")]
        assert answer.revision == told[0].revision


@each_change
def test_counts(lived_in: Space, change: Callable[..., ChangeReply]) -> None:
    """Items and bytes are counted as they are stored."""
    change(lived_in)
    assert lived_in.counts() == lived_in.weigh()


def test_versions_of_paths(space: Space) -> None:
    """A path's versions count from 1, also through a delete: what comes back is not taken for what was."""
    assert [space.patch(("p",)).rest for _ in range(3)] == [(1, b""), (2, b""), (3, b"")]
    assert space.patch(("p", "del", b"")).rest == (3, b"")
    assert space.patch(("p",)).rest == (4, b"")
    assert space.patch(("new",)).rest == (4, b"")
    assert space.hash("ws:doc") == {"p": "4 ada 1", "new": "4 ada 1"}


def test_if_version(space: Space) -> None:
    """A path is written only in the version that was expected; 0 means that nothing is there."""
    assert space.patch(("p", "set", b"1", "is", 0)).status == "ok"
    assert space.patch(("p", "set", b"2", "is", 1)).status == "ok"
    with space.unchanged():
        assert space.patch(("p", "set", b"3", "is", 1)).rest[:2] == (b"p", 2)
        assert space.patch(("p", "set", b"3", "is", 0)).status == "conflict"
        assert space.patch(("p", "del", b"", "is", 1)).status == "conflict"
    assert space.patch(("p", "del", b"", "is", 2)).status == "ok"


def test_newer_than(space: Space) -> None:
    """A path that its writers number takes higher numbers only."""
    assert space.patch(("p", "set", b"1", "newer", 5)).rest == (5, b"")
    with space.unchanged():
        assert space.patch(("p", "set", b"2", "newer", 5)).rest[:2] == (b"p", 5)
        assert space.patch(("p", "set", b"2", "newer", 4)).status == "conflict"
    assert space.patch(("p", "set", b"2", "newer", 9)).rest == (9, b"")


def test_all_or_nothing(space: Space) -> None:
    """One row that does not fit keeps all others from being written."""
    space.patch(("a", "set", b"1"), ("text", "set", b'"x"'))
    with space.unchanged():
        assert space.patch(("b",), ("a", "set", b"2", "is", 7), ("c",)).status == "conflict"
        assert space.patch(("b",), ("text", "incr", b"1")).rest == (b"text",)
    assert space.patch(("b",), ("a", "del", b""), ("n", "incr", b"4")).rest == (1, b"", 1, b"", 2, b"4")


@pytest.mark.parametrize("count", [1, 500])
def test_many_rows(space: Space, count: int) -> None:
    """As many rows as one call may have are written in one step, in one event."""
    rows = [(f"p{number}", "set", b"1") for number in range(count)]
    assert space.patch(*rows).status == "ok"
    assert len(space.hash("ws:doc")) == count
    assert [len(event.changes) for event in space.events()] == [count]


@each_case(
    ("stored", "by", "sum_"),
    [
        (None, b"3", b"3"),
        (b"5", b"-5", b"0"),
        (b"-0", b"0", b"0"),
        (b"9007199254740990", b"1", b"9007199254740991"),
        (b"-9007199254740990", b"-1", b"-9007199254740991"),
        (b"9007199254740991", b"1", None),
        (b"9223372036854775808", b"-1", None),
        (b"9007199254740993", b"-2", None),
        (b"1.0", b"1", None),
        (b"1e3", b"1", None),
        (b'"1"', b"1", None),
        (b"null", b"1", None),
    ],
    fresh="space",
)
def test_incr(space: Space, stored: bytes | None, by: bytes, sum_: bytes | None) -> None:
    """Whole numbers are added exactly; what would not be exact, or is no whole number, is refused."""
    if stored is not None:
        space.patch(("n", "set", stored))
    answer = space.patch(("n", "incr", by))
    assert answer.rest == ((b"n",) if sum_ is None else (2 if stored else 1, sum_))


def test_a_delete_of_nothing(space: Space) -> None:
    """Deleting what is not there is no error and no event."""
    assert (space.patch(("p", "del", b"")).rest, space.events()) == ((0, b""), [])


def test_scratches_are_private(space: Space) -> None:
    """Agents have scratches of their own beside the document, and so has each session."""
    owners = {"": "ws:doc", "ada": "agent:ada:kv", "bob": "agent:bob:kv"}
    for number, owner in enumerate(owners):
        assert space.patch(("p", "set", b"%d" % number), owner=owner).rest == (1, b"")
    for number, part in enumerate(owners.values()):
        assert space.hash(part) == {"p": f"1 ada {number}"}


def test_scratches_remember_apart(space: Space) -> None:
    """Two agents may name changes of their scratches alike: each is made, once."""
    for owner in ("ada", "bob"):
        assert space.patch(("p",), owner=owner, op="first").status == "ok"
        assert space.patch(("p",), owner=owner, op="first").status == "duplicate"
        assert space.hash(f"agent:{owner}:kv")


def test_append(space: Space) -> None:
    """Entries are numbered from 1; beyond the cap the oldest go, and numbers go on."""
    assert space.append("l", b"1", b"2", cap=3).rest == (2, 0)
    assert space.append("l", b"3", b"4", cap=3).rest == (4, 1)
    assert space.log("l") == [(2, "2"), (3, "3"), (4, "4")]
    assert space.append("l", b"5", cap=1).rest == (5, 3)
    assert space.log("l") == [(5, "5")]
    assert space.counts() == space.weigh()


def test_a_cap_that_was_lowered(space: Space) -> None:
    """A long log shrinks to a lower cap step by step, so that no call takes long."""
    for start in range(0, 1500, 500):
        space.append("l", *[b"%d" % number for number in range(start, start + 500)], cap=2000)
    assert [space.append("l", b"x", cap=10).rest for _ in range(4)] == [
        (1501, 501),
        (1502, 501),
        (1503, 491),
        (1504, 1),
    ]
    assert len(space.log("l")) == 10
    assert space.counts() == space.weigh()


def test_tail(space: Space) -> None:
    """A log is read behind any number, also behind one that was dropped or is to come."""
    assert space.tail("l", 0) == []
    space.append("l", *[b"1"] * 10, cap=6)
    space.append("l", b"1", cap=6)
    assert space.tail("l", 0) == [6, 7, 8, 9, 10, 11]
    assert space.tail("l", 7, 2) == [8, 9]
    assert space.tail("l", 11) == space.tail("l", 99) == []


def test_sets(space: Space) -> None:
    """Adding and removing tell how many members changed; what changes none tells no event."""
    assert space.members("s", "add", "a", "b").rest == (1, 2)
    assert space.members("s", "add", "b", "c").rest == (2, 1)
    assert space.members("s", "remove", "a", "x").rest == (3, 1)
    assert space.members("s", "add", "c").rest == space.members("s", "remove", "x").rest == (3, 0)
    assert [(event.kind, [change.value for change in event.changes]) for event in space.events()] == [
        ("add", ["a", "b"]),
        ("add", ["c"]),
        ("remove", ["a"]),
    ]
    assert space.set("s") == {"b", "c"}


def test_transitions(space: Space) -> None:
    """A state machine moves from the states that are expected only; the answer names the one it is in."""
    assert space.transition("job", "open", expect=["x"]).rest == (b"", 0)
    assert space.transition("job", "open", expect=[]).rest == (1,)
    with space.unchanged():
        assert space.transition("job", "open", expect=[]).rest == (b"open", 1)
        assert space.transition("job", "done", expect=["held", "late"]).rest == (b"open", 1)
    assert space.transition("job", "held", expect=["late", "open"]).rest == (2,)
    assert space.transition("job", "done", text=b'{"a":[]}').rest == (3,)
    assert space.hash("ws:task") == {"job": '3 ada done {"a":[]}'}


def test_publish(space: Space) -> None:
    """What is published leaves the scratch and stands in the document, or at the end of a log, in one step."""
    space.patch(("a", "set", b"[]"), ("b", "set", b"2"), owner="ada")
    assert space.publish("a", path="shared").rest == (1,)
    assert space.publish("b", log="l").rest == (1,)
    assert (space.hash("agent:ada:kv"), space.hash("ws:doc"), space.log("l")) == (
        {},
        {"shared": "1 ada []"},
        [(1, "2")],
    )
    with space.unchanged():
        assert space.publish("a").status == "missing"


def test_directory(space: Space) -> None:
    """Agents are in the directory until their lease ends or they leave; outdated ones are dropped by the next."""
    space.join("ada", 1000, b'"a"')
    space.join("bob", 5000, b'"b"')
    assert space.present() == [("ada", 1000, b'"a"'), ("bob", 5000, b'"b"')]
    space.sleep(2)
    assert space.present() == [("bob", 3000, b'"b"')]
    space.join("eve", 1000)
    assert space.hash("dir:info").keys() == {"bob", "eve"}
    space.join("bob", 0)
    assert [name for name, *_ in space.present()] == ["eve"]
    renewed = len(space.events())
    space.join("eve", 1000)
    assert len(space.events()) == renewed


def test_directives(space: Space) -> None:
    """Directives wait in order until they are acknowledged; an inbox that is full refuses more."""
    first, second = (space.direct("bob", most=2).rest[0].decode() for _ in range(2))
    with space.unchanged():
        assert space.direct("bob", most=2).rest == (b"inbox",)
    assert space.direct("eve", most=2).status == "ok"
    assert space.acknowledge("bob", first).rest == (1,)
    assert space.acknowledge("bob", first).rest == (0,)
    assert space.direct("bob", most=2).status == "ok"
    assert space.execute("XRANGE", space.keys.key("inbox:bob"), "-", "+")[0][0].decode() == second


def test_clear(lived_in: Space) -> None:
    """Nothing stays but events, counts and locks; versions and numbers go on."""
    lived_in.clear()
    kept = {name.removeprefix(f"{lived_in.keys.root}:").split(":")[0] for name in lived_in.names()}
    assert kept == {"exec", "meta", "ops", "ws"}
    assert [name for name in lived_in.names() if ":ws:" in name] == [lived_in.keys.key("ws:ev")]
    assert lived_in.counts() == (0, 0)
    assert lived_in.patch(("there",)).rest == (2, b"")
    assert lived_in.append("l", b"1").rest == (2, 0)
    assert lived_in.transition("job", "open").rest == (2,)


def test_clear_with_events(lived_in: Space) -> None:
    """No event from before stays, and no value; ids and revisions go on, and the events lead to what is stored."""
    lived_in.patch(("secret", "set", b'"planted"'))
    lived_in.clear()
    assert b"planted" in repr(lived_in.execute("XRANGE", lived_in.keys.key("ws:ev"), "-", "+")).encode()
    before = lived_in.events()
    assert lived_in.clear(events=True, op="erase").status == "ok"
    (event,) = lived_in.events()
    assert (event.kind, event.detail, event.revision) == ("clear", {"events": True}, before[-1].revision + 1)
    assert [int(part) for part in event.id.split("-")] > [int(part) for part in before[-1].id.split("-")]
    with lived_in.unchanged():
        assert lived_in.clear(events=True, op="erase").status == "duplicate"
    lived_in.patch(("there",))
    snapshot, complete = replayed(lived_in.events())
    assert complete
    assert set(snapshot.paths) == {"there"}
    assert len(lived_in.execute("HGET", lived_in.keys.key("meta"), "places").split()) == 2


def test_previous_values(space: Space) -> None:
    """An event tells what was there before; a value that is too large for it is left out, and it says so."""
    large = b'"' + b"x" * 9000 + b'"'
    space.patch(("p", "set", b"1"))
    space.patch(("p", "set", large))
    space.patch(("p", "del", b""))
    told = [event.changes[0] for event in space.events()]
    assert [(change.value, change.previous, change.deleted, change.told) for change in told] == [
        (1, None, False, True),
        (None, 1, False, False),
        (None, None, True, False),
    ]


@pytest.mark.parametrize("space", [{"max_bytes": 200_000}], indirect=True)
def test_bytes_of_events(space: Space) -> None:
    """Events together take no more than the workspace may; small ones in between do not keep large ones."""
    sizes = []
    for number in range(200):
        rows = [(f"p{number % 7}.{row}", "set", b"1" * (10 + number % 5 * 500)) for row in range(5)]
        space.patch(*rows)
        for mode in ("add", "remove") * 3:
            space.members("s", mode, "x")
        sizes.append(sum(event_sizes(space)))
    assert max(sizes) <= 200_000
    assert min(sizes[50:]) > 160_000
    revisions = [event.revision for event in space.events()]
    assert revisions == list(range(revisions[0], int(space.hash("meta")["rev"]) + 1))
    assert int(space.hash("meta")["noted"]) > 1_000_000
    assert len(space.execute("HGET", space.keys.key("meta"), "places")) < 1000


@pytest.mark.parametrize("space", [{"max_bytes": 20_000}], indirect=True)
def test_one_event_above_the_cap(space: Space) -> None:
    """An event that is larger than all may be stays alone, whole; the next one takes its place."""
    space.members("s", "add", "x")
    space.patch(*[(f"p{row}", "set", b"1" * 3000) for row in range(6)])
    large = [(f"p{row}", "set", b"2" * 3000) for row in range(6)]
    for _ in range(2):
        space.patch(*large)
        (event,) = space.events()
        assert all(change.told and change.value and change.previous for change in event.changes)
    space.members("s", "remove", "x")
    assert [event.kind for event in space.events()] == ["remove"]


@pytest.mark.parametrize("space", [{"max_bytes": 20_000}], indirect=True)
def test_a_lower_cap_of_events(space: Space) -> None:
    """A cap that is lowered holds from the next change on; events from before they were counted go first."""
    for _ in range(5):
        space.patch(("p", "set", b"1" * 1500))
    space.execute("HDEL", space.keys.key("meta"), "noted", "places")
    for _ in range(5):
        space.patch(("p", "set", b"1" * 1500))
    assert len(space.events()) == 10
    space.settings = space.settings.model_copy(update={"max_bytes": 7000})
    space.patch(("p", "set", b"1" * 1500))
    assert [event.revision for event in space.events()] == [10, 11]


def event_sizes(space: Space) -> list[int]:
    """Bytes of each event's fields."""
    events = space.execute("XRANGE", space.keys.key("ws:ev"), "-", "+")
    return [sum(map(len, flat[5::2])) for _, flat in events]


@pytest.mark.parametrize("space", [{"max_items": 3}], indirect=True)
def test_full_of_items(space: Space) -> None:
    """A workspace that holds its items refuses more of any kind; what replaces or removes passes."""
    space.patch(("a",), ("b",))
    space.append("l", b"1")
    changes: list[Callable[[], ChangeReply]] = [
        lambda: space.patch(("c",)),
        lambda: space.patch(("c",), owner="ada"),
        lambda: space.append("l", b"1"),
        lambda: space.members("s", "add", "x"),
        lambda: space.transition("t", "open"),
    ]
    for change in changes:
        with space.unchanged():
            assert (answer := change()).status == "full", answer
            assert answer.rest == (b"items",)
    assert space.append("l", b"2", cap=1).status == "ok"
    assert space.patch(("a", "set", b"2")).status == "ok"
    assert space.patch(("a", "del", b""), ("c",)).status == "ok"


@pytest.mark.parametrize("space", [{"max_bytes": 100}], indirect=True)
def test_full_of_bytes(space: Space) -> None:
    """The same for bytes: what makes a full workspace smaller passes."""
    space.patch(("a", "set", b"1" * 80))
    with space.unchanged():
        assert space.patch(("b", "set", b"1" * 20)).rest == (b"bytes",)
        assert space.publish("x").status == "missing"
    space.settings = space.settings.model_copy(update={"max_bytes": 50})
    assert space.patch(("a", "set", b"1" * 70)).status == "ok"
    assert space.patch(("a", "set", b"1" * 71)).status == "full"


@pytest.mark.parametrize("space", [{"max_parts": 2}], indirect=True)
def test_full_of_parts(space: Space) -> None:
    """Logs, sets, scratches and inboxes are counted together; those that are there take more."""
    space.append("l", b"1")
    space.members("s", "add", "x")
    changes: list[Callable[[], ChangeReply]] = [
        lambda: space.append("m", b"1"),
        lambda: space.members("t", "add", "x"),
        lambda: space.patch(("p",), owner="ada"),
        lambda: space.direct("bob"),
    ]
    for change in changes:
        with space.unchanged():
            assert (answer := change()).status == "full", answer
            assert answer.rest == (b"parts",)
    assert space.append("l", b"1").status == "ok"
    space.join("a", 1000)
    space.join("b", 1000)
    assert space.join("c", 1000).rest == (b"agents",)
