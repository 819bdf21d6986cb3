"""What the validator lets through, and how it lays it out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import TaskIds
from orchestrator.core.settings import QueueSettings, ResultSettings, Settings
from orchestrator.tasks.model import Envelope, decode_envelope
from orchestrator.tasks.options import TASK_OPTIONS
from orchestrator.tasks.scripts import SubmitRow, UnusualRow
from orchestrator.tasks.submission import STRICT_AGING_MS, Parent, Submission, SubmissionValidator

IDS = TaskIds(listens=True)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def validator() -> SubmissionValidator:
    """A validator with small caps."""
    return SubmissionValidator(
        Settings(queue=QueueSettings(max_tags=3, max_child_depth=2, max_args_bytes=1024)), ids=IDS
    )


def unusual(row: SubmitRow) -> UnusualRow:
    """A row that has more than the usual."""
    assert isinstance(row, UnusualRow)
    return row


def envelope_of(row: SubmitRow) -> Envelope:
    """Unpack what travels with a task."""
    return decode_envelope(bytes(row.envelope)[5:])  # the packed text's own head


def test_a_plain_task_has_the_defaults(validator: SubmissionValidator) -> None:
    """A name alone is all that is sent: the rest is as usual. The id says who listens for the end."""
    row = validator.row(Submission("work"))
    assert type(row) is SubmitRow
    assert envelope_of(row) == Envelope("work", b"{}")
    assert row.id.endswith(IDS.node)


@pytest.mark.parametrize(
    "option",
    [
        {"agent": "a"}, {"session": "s"}, {"priority": 3}, {"delay": 1}, {"at": NOON}, {"start_by": NOON}, {"key": "k"},
        {"timeout": 1}, {"max_attempts": 1}, {"tags": ["t"]}, {"result_ttl": 1},
        {"lane": "l"}, {"on_busy": "reject", "lane": "l"}, {"fair": "acme"}, {"budget": "run-7"},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_every_option_is_sent(validator: SubmissionValidator, option: dict[str, Any]) -> None:
    """No option is taken for usual: each changes the row or its envelope."""
    row = unusual(validator.row(Submission("work", **option)))
    sent = (row.rank, row.ttl_s, row.queue, row.delay_ms, row.at_ms, row.start_by_ms, row.idem, row.lane, row.budget)
    assert sent != (None,) * 9 or envelope_of(row) != Envelope("work", b"{}")


def test_all_options_are_tried() -> None:
    """The test above leaves no option out; the client alone acts on `durability` and `require_agent`."""
    (tried,) = [mark.args[1] for mark in test_every_option_is_sent.pytestmark]
    assert sorted(next(iter(option)) for option in tried) == sorted(
        TASK_OPTIONS.keys() - {"durability", "require_agent"}
    )


def test_an_unknown_option_is_refused() -> None:
    """A misspelt keyword is an error of the call, as with any function."""
    with pytest.raises(TypeError, match="no option prio"):
        Submission("work", prio="high")  # type: ignore[call-arg]


def test_what_is_usual_is_not_sent(validator: SubmissionValidator) -> None:
    """What the scripts put in for a missing rank and lifetime is what the default settings mean; others are sent."""
    timed = unusual(validator.row(Submission("work", timeout=5)))
    assert (timed.rank, timed.ttl_s, timed.queue) == (None, None, None)
    aged = SubmissionValidator(Settings(queue=QueueSettings(aging_s=1.5)), ids=IDS)
    assert unusual(aged.row(Submission("work"))).rank == 3000
    brief = SubmissionValidator(Settings(results=ResultSettings(ttl_s=500)), ids=IDS)
    assert unusual(brief.row(Submission("work"))).ttl_s == 500


def test_a_key_is_remembered_for_a_day_at_least(validator: SubmissionValidator) -> None:
    """A repeat may come late, so a key prolongs the default lifetime, but not one that the caller chose."""
    assert unusual(validator.row(Submission("work", key="k"))).ttl_s == 86_400
    assert unusual(validator.row(Submission("work", key="k", result_ttl=600))).ttl_s == 600
    assert unusual(validator.row(Submission("work", key="k", result_ttl=3600))).ttl_s is None
    for setting_s, kept_s in ((600, 86_400), (100_000, 100_000)):
        other = SubmissionValidator(Settings(results=ResultSettings(ttl_s=setting_s)), ids=IDS)
        assert unusual(other.row(Submission("work", key="k"))).ttl_s == kept_s


@pytest.mark.parametrize(
    ("priority", "level"),
    [("critical", 0), ("high", 1), ("normal", 2), ("low", 3), *((number, number) for number in range(10))],
)
def test_priorities_are_words_or_levels(validator: SubmissionValidator, priority: str | int, level: int) -> None:
    """The words are the levels 0 to 3; every level from 0 to 9 may be given."""
    row = validator.row(Submission("work", priority=priority))
    rank = row.rank if isinstance(row, UnusualRow) else None
    assert (2 * STRICT_AGING_MS if rank is None else rank) == level * STRICT_AGING_MS
    assert envelope_of(row).priority == level


@pytest.mark.parametrize("priority", ["urgent", "HIGH", "1", -1, 10, True, 1.0, None])
def test_other_priorities_are_refused(validator: SubmissionValidator, priority: Any) -> None:
    """Anything else is refused with what may be given."""
    with pytest.raises(InvalidInput, match="critical, high, normal, low or 0 to 9"):
        validator.row(Submission("work", priority=priority))


def test_ageing_weighs_a_level(validator: SubmissionValidator) -> None:
    """With `queue.aging_s` one level is worth that much waiting."""
    aged = SubmissionValidator(Settings(queue=QueueSettings(aging_s=1.5)), ids=IDS)
    assert unusual(aged.row(Submission("work", priority="low"))).rank == 4500


def test_times_are_seconds_timedeltas_or_aware_times(validator: SubmissionValidator) -> None:
    """Delays round up to milliseconds, times keep their zone's instant, a lifetime rounds up to seconds."""
    noon = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    row = unusual(
        validator.row(
            Submission("work", delay=0.0001, at=noon, start_by=noon, timeout=timedelta(seconds=2), result_ttl=1.2)
        )
    )
    at_ms = round(datetime(2030, 1, 1, 10, tzinfo=UTC).timestamp() * 1000)
    assert (row.delay_ms, row.at_ms, row.start_by_ms, row.ttl_s) == (1, at_ms, at_ms, 2)
    assert envelope_of(row).timeout_s == 2.0


@pytest.mark.parametrize("name", ["at", "start_by"])
def test_times_without_a_zone_are_refused(validator: SubmissionValidator, name: str) -> None:
    """A naive datetime is refused with the name of the argument."""
    with pytest.raises(InvalidInput, match=f"{name} has no time zone"):
        validator.row(Submission("work", **{name: datetime(2030, 1, 1)}))  # type: ignore[arg-type]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay", -1), ("delay", float("nan")), ("delay", "1"), ("timeout", 0), ("timeout", -1), ("result_ttl", -1),
        ("at", 1.5), ("start_by", "tomorrow"), ("max_attempts", 0), ("max_attempts", 1001), ("max_attempts", True),
        ("max_attempts", 2.0), ("skill", "with blank"), ("skill", ""), ("skill", "{x}"), ("agent", ""),
        ("agent", "a/b"),
        ("session", ""), ("session", "s" * 257), ("session", "\ud800"), ("key", ""), ("key", "k" * 257), ("key", 5),
        ("tags", "text"), ("tags", ["a", "b", "c", "d"]), ("tags", [""]), ("tags", [5]),
    ],
)  # fmt: skip
def test_values_that_cannot_be_meant_are_refused(validator: SubmissionValidator, field: str, value: Any) -> None:
    """Each is refused, and the message names what it is about."""
    task = Submission(**{"skill": "work", field: value})
    with pytest.raises(InvalidInput, match="tag" if field == "tags" else field):
        validator.row(task)


def test_foreign_ids_may_be_any_text(validator: SubmissionValidator) -> None:
    """Session, key and tags keep their text; the key is encoded for Redis."""
    row = unusual(validator.row(Submission("work", session="a {b}/é", key="k {1}", tags=("x y", "ü"))))
    envelope = envelope_of(row)
    assert (envelope.session, envelope.key, envelope.tags) == ("a {b}/é", "k {1}", ("x y", "ü"))
    assert row.idem == "k%20%7B1%7D"


def test_an_addressed_task_goes_to_the_queue_of_its_agent(validator: SubmissionValidator) -> None:
    """With `agent=` the queue is the agent's, and the row tells the skill that it needs."""
    row = unusual(validator.row(Submission("work", agent="editor")))
    assert (row.queue, row.skill) == ("agent:editor", "work")


def test_a_key_covers_what_the_task_does(validator: SubmissionValidator) -> None:
    """The digest of a keyed task changes with skill, arguments, agent and session, not with time or urgency."""

    def digest(**changed: Any) -> str | None:
        return unusual(validator.row(Submission(**({"skill": "work", "args": {"a": 1}, "key": "k"} | changed)))).digest

    same = digest()
    assert same
    assert digest(priority="low", delay=5, tags=["t"], max_attempts=9) == same
    others: list[dict[str, Any]] = [
        {"skill": "other"},
        {"args": {"a": 1.0}},
        {"args": {}},
        {"agent": "x"},
        {"session": "s"},
    ]
    assert all(digest(**changed) != same for changed in others)


def test_arguments_may_be_a_model(validator: SubmissionValidator) -> None:
    """A pydantic model travels as its JSON."""

    class Request(BaseModel):
        when: datetime
        words: tuple[str, ...] = ()

    row = validator.row(Submission("work", Request(when=datetime(2030, 1, 1, tzinfo=UTC), words=("a",))))
    assert envelope_of(row).args == b'{"when":"2030-01-01T00:00:00Z","words":["a"]}'


class Holder(BaseModel, arbitrary_types_allowed=True):
    """A model with a field that JSON cannot hold."""

    thing: object


@pytest.mark.parametrize("args", [[1], "text", 5, [("a", 1)], RootModel[list[int]]([1]), Holder(thing=object())])
def test_arguments_of_other_shapes_are_refused(validator: SubmissionValidator, args: Any) -> None:
    """Only what becomes a JSON object is taken; the message names the skill."""
    with pytest.raises(InvalidInput, match="arguments of 'work'"):
        validator.row(Submission("work", args))


def test_caps_are_named_in_the_refusal(validator: SubmissionValidator) -> None:
    """Too many bytes, tags and generations of children are refused with the cap."""
    with pytest.raises(InvalidInput, match="1024 allowed"):
        validator.row(Submission("work", {"a": "x" * 1020}))
    with pytest.raises(InvalidInput, match="4 tags; at most 3"):
        validator.row(Submission("work", tags=list("abcd")))
    parent = Parent("0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55", "7", depth=1)
    row = unusual(validator.row(Submission("work"), parent))
    assert (row.parent, row.parent_generation, envelope_of(row).depth) == (parent.task_id, "7", 2)
    with pytest.raises(InvalidInput, match="number 3 in a row; at most 2"):
        validator.row(Submission("work"), Parent(parent.task_id, "7", depth=2))


class Named:
    """No more than the name of a skill."""

    name = "work"


class Checking(Named):
    """A skill that knows its arguments."""

    def check_args(self, args: bytes) -> None:
        """Refuse all but one."""
        if args != b'{"x":1}':
            raise InvalidInput(f"not {args!r}")


def test_a_skill_that_knows_its_arguments_is_asked(validator: SubmissionValidator) -> None:
    """It sees the JSON that would be sent, once that is known to be fit to send; a mere name asks nobody."""
    assert envelope_of(validator.row(Submission(Checking(), {"x": 1}))).args == b'{"x":1}'
    with pytest.raises(InvalidInput, match=r"""not b'{"x":2}'"""):
        validator.row(Submission(Checking(), {"x": 2}))
    with pytest.raises(InvalidInput, match="NaN"):
        validator.row(Submission(Checking(), {"x": float("nan")}))
    for skill in (Named(), "work"):
        assert envelope_of(validator.row(Submission(skill, {"x": 2}))).skill == "work"
