"""`orchestrator.sync` has what the asyncio client has, with the same arguments and texts."""

from __future__ import annotations

import inspect
from typing import Any, Final

import orchestrator
from orchestrator import sync
from orchestrator.core.public_names import homes
from orchestrator.sync.blocking import RENAMED, WORKER_TYPE, WRAPPED, blocking_doc, public_members
from tools.sync_stub import TARGET, rendered

FOR_HANDLERS: Final = {
    "Agent",
    "AgentState",
    "CallNext",
    "Extractor",
    "Middleware",
    "LockedMemory",
    "MemoryBackend",
    "ProviderCall",
    "RuleExtractor",
    "Skill",
    "TaskContext",
}
"""Classes that a handler uses, which runs in an event loop."""
PASSED_IN: Final = {"Embedder", "HashedNgrams", "JsonLinesStore", "SecondaryStore", "SqliteStore", "WordLlamaEmbedder"}
"""Classes whose objects a program passes to calls, which use them in the client's event loop."""


def test_every_class_with_calls_is_wrapped() -> None:
    """A public class with a coroutine has a blocking class, and each is exported."""
    public = [getattr(orchestrator, name) for name in homes("orchestrator")]
    awaited = {
        each.__name__
        for each in public
        if inspect.isclass(each) and any(map(inspect.iscoroutinefunction, vars(each).values()))
    }
    assert awaited - FOR_HANDLERS - PASSED_IN <= set(sync.__all__) == {each.__name__ for each in WRAPPED}


def test_every_call_is_there() -> None:
    """Arguments have the same names, order and defaults; nothing is a coroutine; texts know no `await`."""
    for asynchronous in WRAPPED:
        blocking = getattr(sync, asynchronous.__name__)
        assert blocking.__doc__ == blocking_doc(asynchronous.__doc__ or "")
        for name, original in public_members(asynchronous).items():
            made: Any = vars(blocking)[RENAMED.get(name, name)]
            assert made.__doc__
            assert made.__doc__ == blocking_doc(original.__doc__)
            assert "await " not in made.__doc__
            assert isinstance(made, property) == isinstance(original, property)
            if inspect.isfunction(made):
                expected = dict(inspect.signature(original).parameters)
                assert dict(inspect.signature(made).parameters) == {
                    name: parameter for name, parameter in expected.items() if parameter.annotation != WORKER_TYPE
                }
                assert not inspect.iscoroutinefunction(made)


def test_type_checkers_see_the_same() -> None:
    """`make generate` has been run since an asynchronous class was changed."""
    stub = TARGET.read_text(encoding="utf-8")
    assert stub == rendered(), "run `make generate`"
    assert WORKER_TYPE not in stub
