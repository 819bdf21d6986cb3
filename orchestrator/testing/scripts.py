"""Wraps the scripts of the test kit. Each call sends its script, so that no production server stores it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from orchestrator.store.calls import pack_rows
from orchestrator.store.script_files import ScriptFile, load_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys, ProviderKeys

NAMES: Final = ("advance", "advance_providers", "remaining", "records")


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """Remaining work of a pool.

    Attributes:
        ready: tasks in queues, also those without an agent.
        held: tasks in inboxes, assigned or running, and suspects, which a worker takes soon.
        scheduled: tasks that wait for a time, or for a person with a time limit.
        asking: tasks that wait for a person without a limit.
        due_ms: time until the next task is due, or None if none is scheduled.
        starts: assignments since the pool exists.
    """

    ready: int
    held: int
    scheduled: int
    asking: int
    due_ms: int | None
    starts: int


def advance(keys: PoolKeys, *, by_ms: int) -> list[Argument]:
    """Return the command that advances time for everything that waits in a pool."""
    return _command("advance", keys, by_ms)


def advance_providers(keys: ProviderKeys, *, names: Sequence[str], by_ms: int) -> list[Argument]:
    """Return the command that advances time for providers of a pool, or for one that pools share, by its scope."""
    return _command("advance_providers", keys, pack_rows([(name,) for name in names]), by_ms)


def remaining(keys: PoolKeys) -> list[Argument]:
    """Return the command that counts the remaining work; `parse_remaining` reads its reply."""
    return _command("remaining", keys)


def parse_remaining(reply: list[int]) -> RemainingWork:
    """Read the reply of `remaining`."""
    ready, held, scheduled, in_time, asking, due_ms, starts = reply
    return RemainingWork(ready, held, scheduled + in_time, asking, None if due_ms < 0 else due_ms, starts)


def records(keys: PoolKeys, *, ids: Sequence[str]) -> list[Argument]:
    """Return the command that reads state, envelope, addressed queue and due ms of up to 500 tasks."""
    return _command("records", keys, pack_rows([(id_,) for id_ in ids]))


@cache
def script_file(name: str) -> ScriptFile:
    """Load one script of the kit."""
    root: Any = files("orchestrator.testing") / "lua"
    return load_script(root, name)


def _command(name: str, keys: ProviderKeys, *args: Argument) -> list[Argument]:
    script = script_file(name)
    assert len(args) == len(script.args), f"{name} takes {[binding.name for binding in script.args]}"
    return ["EVAL", script.text, 1, keys.root, *args]
