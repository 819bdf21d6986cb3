"""Parsers of stored data, with the corpus in `tests/unit/corpus` and what Hypothesis makes of it.

A parser returns a value or raises an error of the project, whatever it reads; another exception could end a process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.agents.descriptions import decode_description
from orchestrator.agents.timings import unpack_cells
from orchestrator.chat.model import parse_entries as parse_messages
from orchestrator.control.desired import read_desired
from orchestrator.control.entries import read_entry
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import read_slot_value, unpack_issued
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.reading import read_json, read_score, read_text, read_whole
from orchestrator.memory.encoding import decode_record
from orchestrator.memory.headers import decode_header
from orchestrator.schedules.model import decode_plan
from orchestrator.tasks.history import parse_attempt
from orchestrator.tasks.inbox import parse_entries as parse_deliveries
from orchestrator.tasks.model import TaskState, decode_envelope
from orchestrator.tasks.output import as_event
from orchestrator.tasks.output import parse_entries as parse_output
from orchestrator.tasks.questions import read_question
from orchestrator.tasks.records import TaskRecord
from orchestrator.workspace.events import parse_event

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS: Final = tuple(path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").iterdir()))
EXAMPLES: Final = 60
SIGNER: Final = Signer("", "", "a:b:c:{pool:p}")
LONG: Final = 1000
_FIELDS: Final = (
    *("state", "env", "queue", "at", "gen", "reason", "ended", "fails", "deaths", "lane", "cancel", "progress"),
    *("awaits", "result", "ran", "ran:1", "error:1", "ask:1", "answer:1", "answered:1", "asks", "snoozes", "dropped"),
)
_NAMES: Final = tuple(name for name, value in vars(TaskRecord).items() if not name.startswith("_") and name != "entry")


def _record(stored: bytes) -> None:
    record = TaskRecord("01a20b2e-c180-7062-9f80-c5194d131b40", dict.fromkeys(_FIELDS, stored))
    for name in _NAMES:
        with suppress(OrchestratorError):
            value = getattr(record, name)
            if name == "history":
                value(TaskState.DEAD)


def _output(stored: bytes) -> None:
    for kind in (b"output", b"progress", b"asked", b"answered", b"assigned", stored):
        fields = [b"k", kind, b"g", stored, b"a", stored, b"n", stored, b"d", stored]
        for entry in parse_output([(stored, fields)]):
            with suppress(OrchestratorError):
                as_event(entry)


PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "attempt": lambda stored: parse_attempt(1, read_text(stored)),
    "cells": unpack_cells,
    "chat": lambda stored: parse_messages([stored, stored]),
    "command": unpack_issued,
    "command entry": lambda stored: read_entry("1-1", [b"c", stored, b"s", stored], SIGNER),
    "deliveries": lambda stored: parse_deliveries("ada", [(stored, [stored] * count) for count in (1, 6, 10, 12)]),
    "description": decode_description,
    "desired": lambda stored: read_desired([b"seq", stored, b"stop:all", stored, stored, stored], SIGNER),
    "envelope": decode_envelope,
    "event": lambda stored: [
        parse_event(b"1-1", [b"k", kind, b"r", stored, b"a", stored, b"c", stored])
        for kind in (b"patch", b"append", b"direct", b"clear")
    ],
    "json": read_json,
    "memory": lambda stored: decode_record("stm", "a", stored, stored),
    "memory header": decode_header,
    "numbers": lambda stored: (read_whole(stored), read_score(stored)),
    "output": _output,
    "plan": decode_plan,
    "question": lambda stored: read_question(1, b"1 2 " + stored, stored, stored),
    "record": _record,
    "slot": read_slot_value,
}
_signed = st.integers(-(1 << 63), (1 << 64) - 1)
_values = st.recursive(
    st.none() | st.booleans() | _signed | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
_packed = _values.map(msgspec.msgpack.encode)
_stored = (
    st.binary(max_size=64)
    | _packed
    | st.lists(_packed, max_size=13).map(lambda parts: bytes([0x90 + len(parts)]) + b"".join(parts))
    | st.tuples(st.sampled_from(CORPUS), st.integers(0, 200), st.binary(max_size=4)).map(
        lambda taken: taken[0][: taken[1]] + taken[2] + taken[0][taken[1] + len(taken[2]) :]
    )
)


def _check(parse: Callable[[bytes], Any], stored: bytes) -> None:
    with suppress(OrchestratorError):
        parse(stored)


@pytest.mark.parametrize("name", PARSERS)
def test_corpus(name: str) -> None:
    """Each file of the corpus, and each beginning of a short one."""
    for stored in CORPUS:
        _check(PARSERS[name], stored)
        for size in range(min(len(stored), 64)):
            _check(PARSERS[name], stored[:size])


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(stored=_stored)
@example(stored=b"")
def test_any_bytes(name: str, stored: bytes) -> None:
    """Bytes, packed values of any form, and files of the corpus with changes."""
    _check(PARSERS[name], stored)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=LONG, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(stored=_stored)
def test_any_bytes_for_long(name: str, stored: bytes) -> None:
    """The same, other bytes in each run."""
    _check(PARSERS[name], stored)
