"""Reads the submitted tasks of a pool, selects them by skill, arguments and session, and asserts on them.

Uses a blocking connection, so that an assertion is a plain call. One that must be awaited passes silently if the test
forgets the `await`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_jsonable_python

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.payload import decode_json
from orchestrator.tasks.model import TaskState, decode_envelope
from orchestrator.tasks.records import TaskRecord
from orchestrator.testing import scripts

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.services import SyncStore
    from orchestrator.tasks.submission import Arguments, NamedSkill

CHUNK: Final = 500
SHOWN: Final = 20
"""Limit of tasks in a failed assertion."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """One task as submitted, and its state.

    Attributes:
        id: id of the task.
        session: as submitted, like `key` and `tags`.
        priority: 0 to 9, lower first.
        parent: id of the task that submitted it.
        args: decoded from JSON.
        agent: addressed agent; None for any agent with the skill.
        due_at: earliest start, or None if it is not scheduled.
    """

    id: str
    skill: str
    args: dict[str, Any]
    state: TaskState
    session: str | None = None
    agent: str | None = None
    priority: int = 2
    key: str | None = None
    tags: tuple[str, ...] = ()
    parent: str | None = None
    due_at: datetime | None = None

    def __str__(self) -> str:
        """Format it in one line."""
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.args.items())
        made = self.key is not None and self.key.startswith(f"{self.parent}/")  # set by the parent's context
        said = {"session": self.session, "agent": self.agent, "key": None if made else self.key}
        about = "".join(f" {name}={value!r}" for name, value in said.items() if value is not None)
        return f"{self.skill}({given}){about} [{self.state}]"


def read_submitted(store: SyncStore) -> list[Submitted]:
    """Return all tasks of a pool in the order of submission. Blocks."""
    stem = store.keys.task("")
    found: set[str] = set()
    cursor: int | None = None
    while cursor != 0:
        next_cursor, page = store.execute("SCAN", cursor or 0, "MATCH", f"{stem}*", "COUNT", 1000)
        cursor = int(next_cursor)
        found.update(key.decode().removeprefix(stem) for key in page)
    ids = sorted(found)  # ids are ordered by time
    tasks: list[Submitted] = []
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        replies = store.execute(*scripts.records(store.keys, ids=chunk))
        tasks += [_read(id_, *reply) for id_, reply in zip(chunk, replies, strict=True) if reply[0]]
    return tasks


def _read(id_: str, state: bytes, envelope: bytes, queue: bytes, due_ms: bytes) -> Submitted:
    record = TaskRecord(id_, {"state": state, "queue": queue})
    sent = decode_envelope(envelope)
    return Submitted(
        id=id_,
        skill=sent.skill,
        args=decode_json(sent.args) if sent.args else {},
        state=record.state,
        session=sent.session,
        agent=record.agent,
        priority=sent.priority,
        key=sent.key,
        tags=sent.tags,
        parent=sent.parent,
        due_at=from_instant_ms(int(float(due_ms))) if due_ms else None,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Condition of an assertion; None matches anything."""

    skill: str | None
    args: Any
    session: str | None

    def mismatch(self, task: Submitted) -> str | None:
        """Return the first difference in words, or None if the task matches."""
        if self.skill is not None and task.skill != self.skill:
            return f"skill is {task.skill!r}, not {self.skill!r}"
        if self.session is not None and task.session != self.session:
            return f"session is {task.session!r}, not {self.session!r}"
        return None if self.args is None else _mismatch("", self.args, task.args)

    def __str__(self) -> str:
        """Format it as the opening of a message: `a task of skill 'sum' with {'n': 1}`."""
        parts = [f"a task of skill {self.skill!r}" if self.skill is not None else "a task"]
        if self.args is not None:
            parts.append(f"with {self.args!r}")
        if self.session is not None:
            parts.append(f"in session {self.session!r}")
        return " ".join(parts)


def wanted(skill: str | NamedSkill | None, args: Arguments, session: str | None) -> Wanted:
    """Build a condition; accepts a skill object and a pydantic model as arguments."""
    plain: Any = args if args is None or isinstance(args, Mapping) else args.model_dump(mode="json")
    return Wanted(skill if skill is None or isinstance(skill, str) else skill.name, plain, session)


def select(tasks: Sequence[Submitted], asked: Wanted) -> list[Submitted]:
    """Return the tasks that match."""
    return [task for task in tasks if asked.mismatch(task) is None]


def check_submitted(tasks: Sequence[Submitted], asked: Wanted, *, times: int | None) -> list[Submitted]:
    """Return the tasks that match.

    Raises:
        AssertionError: none matches, or not exactly `times`; the message shows the submitted tasks.
    """
    __tracebackhide__ = True
    found = select(tasks, asked)
    if times is None and found:
        return found
    if times is not None and len(found) == times:
        return found
    count = "not" if not found else _times(len(found))
    wish = "" if times is None else f", expected {_times(times)}"
    raise AssertionError(f"{asked} was {count} submitted{wish}; {_instead(tasks, asked)}")


def check_not_submitted(tasks: Sequence[Submitted], asked: Wanted) -> None:
    """Check that no task matches.

    Raises:
        AssertionError: with the tasks that match.
    """
    __tracebackhide__ = True
    found = select(tasks, asked)
    if found:
        raise AssertionError(f"{asked} was {_times(len(found))} submitted, expected none:\n{_listed(found)}")


def _instead(tasks: Sequence[Submitted], asked: Wanted) -> str:
    if not tasks:
        return "nothing was submitted at all"
    # Tasks of the same skill first, as the closest.
    near = sorted(tasks, key=lambda task: task.skill != asked.skill)
    lines = [f"  {task}" + (f"  <- {mismatch}" if (mismatch := asked.mismatch(task)) else "") for task in near[:SHOWN]]
    return "submitted were:\n" + "\n".join(lines) + _more(tasks)


def _listed(tasks: Sequence[Submitted]) -> str:
    return "\n".join(f"  {task}" for task in tasks[:SHOWN]) + _more(tasks)


def _more(tasks: Sequence[object]) -> str:
    return f"\n  … and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _mismatch(place: str, expected: Any, actual: Any) -> str | None:
    """Compare as a subset: a mapping needs only the expected names, a list all elements."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return _differs(place, expected, actual)
        for name, value in expected.items():
            inner = f"{place}.{name}" if place else str(name)
            if name not in actual:
                return f"{inner} is missing"
            if (found := _mismatch(inner, value, actual[name])) is not None:
                return found
        return None
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return _differs(place, expected, actual)
        pairs = enumerate(zip(expected, actual, strict=True))
        found_in = (_mismatch(f"{place}[{index}]", one, other) for index, (one, other) in pairs)
        return next((found for found in found_in if found is not None), None)
    # Matchers with their own `==` work as they are; paths, times and models are compared as JSON.
    if expected == actual or to_jsonable_python(expected, fallback=_no_json) == actual:
        return None
    return _differs(place, expected, actual)


def _no_json(value: object) -> str:
    return os.fspath(value) if isinstance(value, PurePath) else "\0 no JSON"


def _differs(place: str, expected: object, actual: object) -> str:
    return f"{place or 'args'} is {_short(actual)}, not {expected!r}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
