"""Records the spans of a test with the SDK's exporter in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import pytest
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext


class RecordedSpans:
    """The spans that have ended."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it the provider of this process until the end of the test; the library allows no second one."""
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.provider)

    @property
    def all(self) -> list[ReadableSpan]:
        """All spans, in the order of their starts."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans with a name."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span with a name."""
        (span,) = self.named(name)
        return span

    async def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait until so many spans with a name have ended, and return them."""
        await wait_for(lambda: len(self.named(name)) >= count, lambda: f"{count} of {name!r}, saw {self.names}")
        return self.named(name)

    @property
    def names(self) -> list[str]:
        """The names of all spans."""
        return [span.name for span in self.all]


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Trace id and span id."""
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    """Trace id and span id of the parent, if any."""
    return None if span.parent is None else _ids(span.parent)


def links_of(span: ReadableSpan) -> dict[str, tuple[int, int]]:
    """The linked spans, by the kind of the link."""
    return {str((link.attributes or {})["orc.link"]): _ids(link.context) for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, object]:
    """The attributes."""
    return dict(span.attributes or {})


def _ids(context: SpanContext) -> tuple[int, int]:
    return context.trace_id, context.span_id
