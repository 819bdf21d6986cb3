"""Checks the rows of a backup, because a file may come from anywhere: what a script reads must have its form."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from orchestrator.backup.rows import LAST_MS, CommandsRow, KeyRow, OutputRow, SavedTask, to_bytes
from orchestrator.core.errors import DamagedData, InvalidInput
from orchestrator.core.ids import check_name, check_task_id, decode_foreign
from orchestrator.core.queue_name import QueueName
from orchestrator.schedules.model import decode_plan
from orchestrator.store.found_keys import check_scope, name_key
from orchestrator.store.key_kinds import Backup
from orchestrator.store.keys import META, PARTS
from orchestrator.tasks.model import TaskState, decode_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.backup.rows import DataRow

STORED_STATES: Final = frozenset(
    {
        *("scheduled", "ready", "waiting", "assigned", "awaiting_input", "joining", "awaiting_tasks"),
        *("succeeded", "dead", "cancelled", "expired"),
    }
)
_ENDED: Final = frozenset({str(state) for state in TaskState if state.final})
_NUMBERS: Final = frozenset(
    "gen rank by ttl due fails deaths begun blamed group alone depth ended asks dropped ran was".split()  # noqa: SIM905 - a list of words
)
_TIMES: Final = frozenset({"due", "by", "ended", "begun"})
_NUMBER: Final = re.compile(r"[0-9]{1,17}")
_SCORE: Final = re.compile(r"-?[0-9]{1,17}(?:\.[0-9]{1,17})?(?:e[+-]?[0-9]{1,2})?|-?inf")
_PLACE: Final = re.compile(r"(\S{1,128}) ([0-9]{1,17}-[0-9]{1,17}) ([0-9]{1,17})")
_ENTRY: Final = re.compile(r"[0-9]{1,17}-[0-9]{1,17}")
_LIMIT: Final = re.compile(r"[0-9]{1,9} [0-9]{1,17}")
_META: Final = frozenset("rev born fresh dies items bytes floor top tail noted".split())  # noqa: SIM905 - a list of words
_CHAT: Final = frozenset("rev edited base count bytes tokens trimmed born fresh dies version".split())  # noqa: SIM905
_MESSAGE: Final = re.compile(
    r'[0-9]{1,17},[0-9]{1,17},[0-9]{1,17},(?:null|[0-9]{1,17}),[0-9]{1,17},"[^"]*",(?:null|"[^"]*"),(?:null|"[^"]*"),'
)
DEADLINE, STORED = 3, 4
"""Places of two times in the header of a record of memory, in ms."""
_COLUMNS: Final = 15
_NUMBERS_OF_HEADER: Final = (0, 1, 2, DEADLINE, STORED, 11)
_NAMES_OF_HEADER: Final = (5, 6, 7, 8, 9, 10)
_PLACES: Final = re.compile(r"(?:[0-9]{1,17}-[0-9]{1,17} [0-9]{1,17}(?: |$))*")
_NAMES: Final = 512
"""Longest name of a field."""


def check_row(row: DataRow, *, pool: str) -> None:
    """Check a row.

    Args:
        row: any row with data.
        pool: name of the saved pool.

    Raises:
        InvalidInput: the program would not have stored this.
    """
    match row:
        case SavedTask() if row.is_stub:
            check_task_id(row.id)
            _check(0 <= row.left_ms <= LAST_MS, "the lifetime of a deleted task")
            deleted, ended_as = row.fields["deleted"], row.fields["ended_as"]
            _check(_NUMBER.fullmatch(deleted) and ended_as in _ENDED, "a deleted task")
        case SavedTask():
            check_task(row)
        case OutputRow():
            check_task_id(row.id)
            _check(0 <= row.left_ms <= LAST_MS, "the lifetime of output")
            for entry, *fields in row.entries:
                _check(_ENTRY.fullmatch(entry) and fields and len(fields) % 2 == 0, "an entry of output")
                _check_bytes(fields)
            _check_order([entry for entry, *_ in row.entries])
        case KeyRow():
            _check_key(row, pool)
        case CommandsRow():
            for stored in (row.desired, row.revisions):
                _check_bytes([*stored, *stored.values()])


def check_task(row: SavedTask) -> None:
    """Check the record of a task.

    Raises:
        InvalidInput: a script could not work with it.
    """
    check_task_id(row.id)
    fields = row.fields
    _check(fields.get("state") in STORED_STATES, "the state of a task")
    _check("gen" in fields and "env" in fields, "a task without generation or envelope")
    for name, value in fields.items():
        _check(len(name) <= _NAMES, "the name of a field")
        _check(name not in _TIMES or (_NUMBER.fullmatch(value) and int(value) <= LAST_MS), f"the time {name} of a task")
        _check(name not in _NUMBERS or _NUMBER.fullmatch(value), f"the field {name} of a task")
    _check_bytes([*fields, *fields.values()])
    try:
        envelope = decode_envelope(to_bytes(fields["env"]))
    except DamagedData as wrong:
        raise InvalidInput(f"the envelope of a task is wrong: {wrong}") from None
    check_name("skill", envelope.skill)
    if queue := fields.get("queue"):
        kind, name = QueueName.parse(queue)
        _check(kind in {"skill", "agent"}, "the queue of a task")
        check_name(kind, name)
    for name in ("lane", "idem", "session"):
        if name in fields:
            decode_foreign(fields[name])
    if "skill" in fields:
        check_name("skill", fields["skill"])
    if fields["state"] == "assigned":
        found = _PLACE.fullmatch(fields.get("at", ""))
        _check(found, "the place of an assigned task")
        check_name("agent", found[1] if found else "")
    _check(fields["state"] != "scheduled" or "due" in fields, "a scheduled task without a time")
    _check(fields["state"] not in _ENDED or "ended" in fields, "an ended task without a time")
    for score in (row.score, row.turn):
        _check(not score or (_SCORE.fullmatch(score) and "inf" not in score), "the place of a task")
    _check(0 <= row.left_ms <= LAST_MS and 0 <= row.children_ms <= LAST_MS, "the lifetime of a task")
    _check_bytes([row.digest])
    for child in row.children:
        check_task_id(child)


def read_header(packed: str) -> list[Any]:
    """Return the header of a record of memory, in the column order of `lua/includes/memory.lua`.

    Raises:
        InvalidInput: it has another form.
    """
    try:
        header = msgspec.msgpack.decode(to_bytes(packed))
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidInput("the header of a record is wrong") from None
    _check(isinstance(header, list) and len(header) >= _COLUMNS, "the header of a record")
    numbers = [header[place] for place in _NUMBERS_OF_HEADER]
    _check(all(isinstance(each, int | float) and abs(each) < 2**63 for each in numbers), "a number of a header")
    _check(all(isinstance(header[place], str) for place in _NAMES_OF_HEADER), "a name in a header")
    return cast("list[Any]", header)


def _check_key(row: KeyRow, pool: str) -> None:
    check_scope(row.scope, pool)
    key = name_key(row.scope, row.suffix)
    saved = key.is_log or key.backup in {Backup.KEPT, Backup.UNTIL}
    if key.kind is None or not saved or key.kind.type != row.type:
        raise InvalidInput(f"a key that no backup has: {row.scope!r:.80} {row.suffix!r:.80} of type {row.type!r:.20}")
    _check(0 <= row.left_ms <= LAST_MS and 0 <= row.until_ms <= LAST_MS, "the lifetime of a key")
    values = row.values
    _check(values, "a key without content")
    _check_bytes(values)
    match row.type:
        case "string":
            _check(len(values) == 1, "the content of a text")
        case "hash":
            _check(len(values) % 2 == 0, "the fields of a hash")
        case "zset":
            _check(len(values) % 2 == 0 and all(map(_SCORE.fullmatch, values[::2])), "the scores of a sorted set")
        case "list" if key.is_messages:
            _check(all(map(_MESSAGE.match, values)), "a message of a chat")
        case "stream":
            read_entries(values)
    if row.type == "hash":
        _check_hash(row, dict(zip(values[::2], values[1::2], strict=True)))
    if row.suffix == "fence":
        _check(_NUMBER.fullmatch(values[0]), "a fence")


def _check_hash(row: KeyRow, fields: dict[str, str]) -> None:
    key = name_key(row.scope, row.suffix)
    if key.is_headers:
        for packed in fields.values():
            read_header(packed)
    elif key.is_chat:
        extracted = [value for name, value in fields.items() if name.startswith("x:")]
        counts = [fields.get(name, "0") for name in _CHAT]
        _check(all(map(_NUMBER.fullmatch, counts + extracted)), "the counts of a chat")
    elif row.suffix == META:
        _check(all(_NUMBER.fullmatch(fields.get(name, "0")) for name in _META), "the counts of a workspace")
        _check(_PLACES.fullmatch(fields.get("places", "")), "the places of a workspace")
    elif row.suffix == "limits":
        _check(all(map(_LIMIT.fullmatch, fields.values())), "a limit")
    elif name_key(row.scope, row.suffix).is_schedule:
        _check(fields.get("next") == "inf" or _NUMBER.fullmatch(fields.get("next", "")), "the time of a schedule")
        decode_plan(to_bytes(fields.get("plan", "")))
    elif row.suffix in {PARTS, "sessions:dropped", "stats:TOTAL", "durability"}:
        _check(all(map(_NUMBER.fullmatch, fields.values())), "a count")


def read_entries(values: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the entries of a stream: id, names and values.

    Raises:
        InvalidInput: the list has another form.
    """
    entries: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(values):
        _check(_ENTRY.fullmatch(values[at]) and at + 1 < len(values), "the id of an entry")
        count = values[at + 1]
        _check(_NUMBER.fullmatch(count), "the length of an entry")
        fields = list(values[at + 2 : at + 2 + int(count)])
        _check(fields and len(fields) == int(count) and len(fields) % 2 == 0, "the fields of an entry")
        entries.append((values[at], fields))
        at += 2 + int(count)
    _check_order([entry for entry, _ in entries])
    return entries


def _check_order(ids: Sequence[str]) -> None:
    """Refuse ids of entries that do not rise, which Redis would refuse in the middle of a restore."""
    numbers = [tuple(map(int, entry.split("-"))) for entry in ids]
    _check(all(before < after for before, after in pairwise([(0, 0), *numbers])), "the order of entries")


def _check_bytes(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            to_bytes(text)
        except UnicodeEncodeError:
            raise InvalidInput("a text has a character beyond one byte") from None


def _check(right: object, what: str) -> None:
    if not right:
        raise InvalidInput(f"{what} is wrong")
