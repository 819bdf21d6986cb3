"""The product logs the events that `tools/log_events.py` declares, each with its level and its keys."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.helpers.log_checks import violations_of
from tools.log_events import EVENTS, LOG_KEYS, RESERVED, SECTIONS, LogEvent
from tools.reference.tables import events as events_page

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("orchestrator", "workers")
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "failure": "warning",
}
HOME: Final = "orchestrator/core/log.py"
LOGGERS: Final = {"_log", "log"}
NOT_KEYS: Final = {"Asked", "Reject", "Snooze", "def", "except", "lease", "lock_lost", "maxmemory", "task_lost"}
"""Words of the code in the texts of events that are neither events nor keys."""


@dataclass(frozen=True, slots=True)
class LogCall:
    """One call that writes an event; `keys` is None if it passes a mapping."""

    place: str
    name: object
    level: str
    keys: frozenset[str] | None


def _calls(source: str, place: str) -> list[LogCall]:
    tree = ast.parse(source)
    bound = {
        node.targets[0].id: {word.arg or "" for word in node.value.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "bind"
    }
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS):
            continue
        logger = ast.unparse(call.func.value).rpartition(".")[2]
        if logger not in LOGGERS:
            continue
        first = call.args[0] if len(call.args) == 1 else None
        words = {word.arg or "" for word in call.keywords} | bound.get(logger, set())
        found.append(
            LogCall(
                f"{place}:{call.lineno}",
                first.value if isinstance(first, ast.Constant) else None,
                LEVELS[call.func.attr],
                None if "" in words else frozenset(words - {"exc_info", "traceback", "stack"}),
            )
        )
    return found


def _wrong(call: LogCall) -> str | None:
    """Return what is wrong with a call, or None."""
    event = EVENTS.get(str(call.name))
    if not isinstance(call.name, str) or call.keys is None:
        return "the name of an event is a constant, and its keys are written out"
    if event is None:
        return f"{call.name} is not declared in tools/log_events.py"
    if call.level not in {event.level, event.up_level}:
        return f"{call.name} is declared with the level {event.level}"
    missing, unknown = event.required - call.keys, call.keys - event.allowed
    if missing or unknown:
        return f"{call.name}: keys {sorted(missing)} are missing, {sorted(unknown)} are not declared"
    return None


def _product() -> list[tuple[str, str]]:
    """The source files of the product and their texts."""
    paths = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def test_calls_write_what_is_declared() -> None:
    """Each call has a declared name, the level of its event, all of its keys and no other."""
    wrong = {
        call.place: problem
        for place, source in _product()
        for call in _calls(source, place)
        if (problem := _wrong(call)) is not None
    }
    assert wrong == {}


def test_a_wrong_call_is_found() -> None:
    """The twin: a call with an unknown name or key, a missing key, another level or a mapping."""
    right = '_log.warning("attempt_failed", task=1, agent=2, attempt=3, reason=4, retry_in_ms=5, skill=6, where=7)'
    bound = f"log = _log.bind(task=1, agent=2, attempt=3)\nlog.exception({right[13:29]}, reason=4, retry_in_ms=5"
    for source, problem in {
        right: None,
        right.replace("attempt_failed", "attempt_faild"): "not declared",
        right.replace(", reason=4", ""): "['reason'] are missing",
        right.replace("reason", "why"): "['why'] are not declared",
        right.replace("warning", "error"): "declared with the level warning",
        right.replace("reason=4", "**more"): "written out",
        right.replace('"attempt_failed"', "name"): "written out",
        f"{bound}, skill=6, where=7)": "level",
    }.items():
        (call,) = _calls(source, "x.py")
        found = _wrong(call)
        assert found is None if problem is None else problem in (found or ""), source


def test_each_event_is_written() -> None:
    """No event is declared that nothing writes, and none twice."""
    written = {call.name for place, source in _product() for call in _calls(source, place)}
    declared = Counter(event.name for section in SECTIONS for event in section.events)
    assert {name for name in declared if name not in written} == set()
    assert {name for name, times in declared.items() if times > 1} == set()


def test_events_pass_one_logger() -> None:
    """No module writes past `get_logger(__name__)`, so that the calls above are all there are."""
    wrong = [
        f"{place}: {line.strip()}"
        for place, source in _product()
        if place != HOME
        for line in source.splitlines()
        if re.search(r"import structlog|from structlog|logging\.(debug|info|warning|error|exception|log)\(", line)
        or ("get_logger(" in line and not re.match(r'_log = get_logger\((__name__|"agent")\)', line))
    ]
    assert wrong == []


def test_keys_mean_the_same_everywhere() -> None:
    """Each key is declared once, is used, and is none that every line has; durations and times have a unit."""
    used = {key for event in EVENTS.values() for key in event.allowed}
    assert used ^ set(LOG_KEYS) == set()
    assert used & set(RESERVED) == set()
    timed = {name for name, key in LOG_KEYS.items() if re.search(r"\btime (since|until|for)|clock", key.meaning)}
    assert {name for name in timed if not name.endswith(("_s", "_ms"))} == set()
    assert {name for name, key in LOG_KEYS.items() if name.endswith(("_s", "_ms")) and key.type != "number"} == set()


def test_texts_cite_keys_of_their_event() -> None:
    """A backticked word in the text of an event is a key of that event, or another event."""
    known = {*EVENTS, *NOT_KEYS, "worker"}
    cited = {event.name: set(re.findall(r"`(\w+)`", event.text)) - event.allowed for event in EVENTS.values()}
    assert {name: words - known for name, words in cited.items() if words - known} == {}


def test_the_page_shows_them() -> None:
    """The reference has a line per event with its level and keys, and a row per key."""
    page = events_page()
    assert (
        "- **`attempt_failed`** (warning; `agent`, `attempt`, `reason`, `retry_in_ms`, `skill`, `task`, `where`): "
        in page
    )
    assert [name for name in EVENTS if page.count(f"- **`{name}`**") != 1] == []
    assert [name for name in LOG_KEYS if f"\n| `{name}` | " not in page] == []


def test_values_have_the_declared_type() -> None:
    """The check that runs beside every test compares values too: a list is no number."""
    assert violations_of("host_stop_requested", {"immediately": True, "signal": "SIGTERM", "workers": 2}) == []
    assert violations_of("host_stop_requested", {"immediately": True, "signal": "SIGTERM", "workers": ["w1"]}) != []
    assert violations_of("host_stop_requested", {"immediately": 1, "signal": "SIGTERM", "workers": 2}) != []
    assert violations_of("host_stop_requested", {"signal": "SIGTERM"}) != []
    assert violations_of("unknown", {}) != []
    assert isinstance(EVENTS["task_failed"], LogEvent)
