"""Checks whether this process traces. Importing this module does not load OpenTelemetry.

A program that traces has imported `opentelemetry.trace` to set its tracer provider. So a process that has not loaded it
pays for a look-up in a dictionary, and one that has loaded it without a provider for two.
"""

from __future__ import annotations

import contextvars
import os
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from orchestrator.tracing.spans import Tracing

_API: Final = "opentelemetry.trace"
_UNKNOWN: Final = object()
_PROVIDER_IS_NAMED: Final = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
"""The first call of `get_tracer_provider` makes the provider that this variable names."""


def active() -> Tracing | None:
    """Return what makes the spans of this process; None unless it has a tracer provider."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    # `get_tracer_provider` asks the environment when there is no provider, which costs each task 0.7 µs.
    if getattr(api, "_TRACER_PROVIDER", _UNKNOWN) is None and not _PROVIDER_IS_NAMED:
        return None
    return _find()


def _find() -> Tracing | None:
    # Waits while another thread imports the library.
    from orchestrator.tracing.spans import find_tracing

    return find_tracing()


def header_of_current_span(otherwise: str = "") -> str:
    """Return the context to hand on: that of the current span, or `otherwise` in a process that does not trace."""
    tracing = active()
    return otherwise if tracing is None else tracing.current_header() or otherwise


def under(header: str) -> AbstractContextManager[None]:
    """Make a span of another process the current one during a block, if OpenTelemetry is installed."""
    if not header:
        return nullcontext()
    try:
        from orchestrator.tracing.spans import under_remote
    except ImportError:
        return nullcontext()
    return under_remote(header)


def background_context() -> contextvars.Context:
    """Return the context for tasks that outlive the current span: a copy of the current one, without that span."""
    copied = contextvars.copy_context()
    api: Any = sys.modules.get("opentelemetry.context")
    if api is not None:
        copied.run(api.attach, api.Context())
    return copied


@contextmanager
def no_current_span() -> Iterator[None]:
    """Start tasks in a block whose spans do not belong to the span around it."""
    api: Any = sys.modules.get("opentelemetry.context")
    if api is None:
        yield
        return
    token = api.attach(api.Context())
    try:
        yield
    finally:
        api.detach(token)
