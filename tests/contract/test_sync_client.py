"""`orchestrator.sync` has what the asyncio client has, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any, Final, get_overloads

import orchestrator
from orchestrator import sync
from orchestrator.client import admin
from orchestrator.schedules import api
from orchestrator.tasks.options import TaskOptions
from tests.helpers.cases import each_case

RENAMED: Final = {"aclose": "close"}
FOR_OTHERS: Final = {
    "Orchestrator": {"services", "submit_one", "agents", "board", "config", "locks", "limits", "workspace"},
    "Admin": {"give"},
    "TaskHandle": {"before_wait"},
}
"""What is for the command line, worker code and tests; and shared state, whose locks only an event loop can end."""
WORKER_ARGUMENTS: Final = {"parent"}
ORIGINALS: Final[dict[str, Any]] = {
    "Admin": admin.Admin,
    "Orchestrator": orchestrator.Orchestrator,
    "Schedules": api.Schedules,
    "Sent": admin.Sent,
    "TaskHandle": orchestrator.TaskHandle,
}
NAMES: Final = list(ORIGINALS)
BUILT: Final = {name for name in NAMES if name != "Orchestrator"}
"""Nobody outside makes these."""


def members(public: Any) -> dict[str, Any]:
    """What users see of a class; values are there for methods."""
    slots = dict.fromkeys(vars(public).get("__slots__", ()))
    return {name: value for name, value in {**slots, **vars(public)}.items() if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, object]]:
    """Names and defaults; a type of options stands for them."""
    found: list[tuple[str, object]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found += [(name, "option") for name in TaskOptions.__annotations__]
        elif parameter.name not in WORKER_ARGUMENTS:
            found.append((parameter.name, parameter.default))
    return [(name, "option" if name in TaskOptions.__annotations__ else default) for name, default in found]


@each_case("name", NAMES)
def test_it_has_every_call(name: str) -> None:
    """Nothing is missing, nothing is invented."""
    known = {RENAMED.get(member, member) for member in members(ORIGINALS[name])} - FOR_OTHERS.get(name, set())
    assert set(members(getattr(sync, name))) == known
    assert sync.__all__ == NAMES


@each_case("name", NAMES)
def test_calls_take_the_same(name: str) -> None:
    """Arguments have the same names, order and defaults, and nothing is a coroutine."""
    asynchronous, synchronous = members(ORIGINALS[name]), members(getattr(sync, name))
    asynchronous["__init__"], synchronous["__init__"] = (
        ORIGINALS[name].__init__,
        getattr(sync, name).__init__,
    )
    for member, function in synchronous.items():
        if not inspect.isfunction(function) or (name in BUILT and member == "__init__"):
            continue
        original = asynchronous[next((old for old, new in RENAMED.items() if new == member), member)]
        assert parameters(function) == parameters(original), member
        assert not inspect.iscoroutinefunction(function), member
        assert function.__doc__ or member == "__init__", member


def test_type_checkers_see_the_options() -> None:
    """Both forms of `submit`, with a skill and with a name, have the options spelt out."""
    overloads = get_overloads(sync.Orchestrator.submit)
    assert len(overloads) == 2
    assert all("Unpack[TaskOptions]" in str(one.__annotations__["options"]) for one in overloads)
