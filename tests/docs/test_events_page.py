"""docs/reference/events.md explains every log event. Run this file as a script to write levels and keys anew."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Final

from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "events.md"
PRODUCT: Final = ("orchestrator", "workers")
LEVELS: Final = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}

EVERYWHERE: Final = {"worker"}
"""Keys that every record of a worker process has; see `bind_context`."""
NOT_KEYS: Final = {"Asked", "def", "except", "lease", "lock_lost", "maxmemory", "task_lost"}
"""Words of the code in the sentences of the page that are neither events nor keys."""

_ITEM: Final = re.compile(r"^- \*\*`(\w+)`\*\* \(([^)]*)\): (.*)$")


@dataclass(slots=True)
class Event:
    """One event as the code writes it, from all places."""

    levels: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        """The text in the brackets on the page."""
        keys = ", ".join(f"`{key}`" for key in sorted(self.keys))
        levels = " or ".join(level for level in LEVELS if level in self.levels)
        return f"{levels}; {keys}" if keys else levels


def written() -> dict[str, Event]:
    """Every event that the product writes, by name."""
    found: dict[str, Event] = {}
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            bound = _bound_keys(tree)
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and (logger := _logger_of(call)) is not None:
                    method = call.func
                    name = call.args[0] if len(call.args) == 1 else None
                    assert isinstance(method, ast.Attribute)
                    assert isinstance(name, ast.Constant), f"{path}:{call.lineno}: the name of an event is a constant"
                    event = found.setdefault(str(name.value), Event())
                    event.levels.add(LEVELS[method.attr])
                    event.keys |= bound.get(logger, set())
                    event.keys |= {word.arg for word in call.keywords if word.arg and word.arg != "exc_info"}
    return found


def _logger_of(call: ast.Call) -> str | None:
    """The name of the logger that a call writes to, or None."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in LEVELS:
        return None
    name = ast.unparse(call.func.value).rpartition(".")[2]
    return name if name in {"_log", "log"} else None


def _bound_keys(tree: ast.Module) -> dict[str, set[str]]:
    """The keys that `log = _log.bind(...)` adds, by the name of the new logger."""
    return {
        node.targets[0].id: {word.arg for word in node.value.keywords if word.arg}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "bind"
    }


def shown() -> list[tuple[str, str, str]]:
    """Name, levels with keys, and text of every event on the page, in its order."""
    lines = re.sub(r"\n +", " ", PAGE.read_text(encoding="utf-8")).splitlines()
    return [(found[1], found[2], found[3]) for line in lines if (found := _ITEM.match(line))]


def test_every_event_is_explained() -> None:
    """The page has each event of the code once, and no other."""
    assert sorted(name for name, _, _ in shown()) == sorted(written())


def test_levels_and_keys() -> None:
    """The page shows the levels and keys with which the code writes an event."""
    events = written()
    wrong = {name: head for name, head, _ in shown() if name in events and head != str(events[name])}
    assert wrong == {}, f"run: python {__file__}"


def test_events_have_a_text() -> None:
    """Behind its keys each event says what it tells."""
    assert [name for name, _, text in shown() if not text] == []


def test_texts_cite_keys_of_their_event() -> None:
    """A backticked word in the text of an event is a key of that event, or another event."""
    events = written()
    cited = {name: set(re.findall(r"`(\w+)`", text)) for name, _, text in shown() if name in events}
    known = set(events) | EVERYWHERE | NOT_KEYS
    wrong = {name: words - events[name].keys - known for name, words in cited.items()}
    assert {name: words for name, words in wrong.items() if words} == {}


if __name__ == "__main__":
    current = written()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        re.sub(
            r"(?m)^- \*\*`(\w+)`\*\* \([^)]*\)",
            lambda item: f"- **`{item[1]}`** ({current.get(item[1], '?')})",
            page,
        ),
        encoding="utf-8",
    )
