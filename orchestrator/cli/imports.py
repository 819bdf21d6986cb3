"""Makes the program start quickly: what it does not use of its libraries is not imported.

Only the program `orc` does this. It runs no code of the user, and its processes are short. ADR 0076 has the
measurements.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

_DEFERRED: Final = ("redis", "redis.asyncio", "redis.observability", "redis.asyncio.observability")
"""Packages that import all their modules, of which a connection needs few."""
_TELEMETRY: Final = "opentelemetry"
"""redis-py imports it if it is installed, for metrics that this program does not have."""
_COLLECT_EVERY: Final = 200_000
"""More than a short command allocates: a collection takes 10 ms."""


class _Deferred(ModuleType):
    """A package whose own code runs when one of its names is used; its modules can be imported before."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # once: its code may ask for names that it lacks
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, name)


_quick: bool = False


def is_quick() -> bool:
    """Return whether this process ends soon."""
    return _quick


def quicken() -> None:
    """Prepare a process that ends soon: defer packages, and collect garbage rarely."""
    global _quick  # noqa: PLW0603 - said once, at the start of the program
    _quick = True
    gc.set_threshold(_COLLECT_EVERY)
    if any(name in sys.modules for name in _DEFERRED):
        return
    for name in _DEFERRED:
        spec = importlib.util.find_spec(name)
        if spec is None:
            return
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[name] = module
        package, _, inner = name.rpartition(".")
        if package:
            setattr(sys.modules[package], inner, module)
    if _TELEMETRY not in sys.modules:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # as if it were not installed
