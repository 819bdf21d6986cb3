"""A tracer provider that drops what it exports: it measures the cost of making spans, and not that of a collector."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class DroppingExporter(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop the spans."""
        del spans
        return SpanExportResult.SUCCESS


def start_spans() -> None:
    """Make spans in this process from now on."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(DroppingExporter()))
    trace.set_tracer_provider(provider)


@contextlib.contextmanager
def with_spans(provider: TracerProvider | None) -> Iterator[None]:
    """Make spans in this process during a block; with None, make none."""
    # The library sets a provider once, and a benchmark compares both in one process.
    before = trace._TRACER_PROVIDER  # noqa: SLF001
    trace._TRACER_PROVIDER = provider  # noqa: SLF001
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before  # noqa: SLF001
