"""What the current span hands on, and when a process traces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider, SpanContext, TraceFlags, TraceState

from orchestrator.tracing.active import active, header_of_current_span, under
from orchestrator.tracing.spans import header_of, ids_of_current_span
from tests.helpers.spans import RecordedSpans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider as AnyProvider

HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 vendor=a,other=b"


def test_the_state_of_vendors_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote span is current during the block, with its state; spans below it keep that."""
    RecordedSpans().install(monkeypatch)
    with under(HEADER):
        assert header_of_current_span() == HEADER
        assert ids_of_current_span() == {
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b7",
        }
        with trace.get_tracer("user").start_as_current_span("inner") as inner:
            assert header_of(inner).partition(" ")[2] == "vendor=a,other=b"
            assert header_of(inner)[:35] == HEADER[:35]
    assert header_of_current_span("given") == "given"
    assert ids_of_current_span() == {}


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-0"])
def test_no_context(header: str) -> None:
    """A text that is none makes no span current."""
    with under(header):
        assert not trace.get_current_span().get_span_context().is_valid


def test_an_invalid_state_is_dropped() -> None:
    """Another program may write what the library does not accept."""
    span = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState()))
    with under(header_of(span) + " =broken,,"):
        assert header_of(trace.get_current_span()) == header_of(span)


@pytest.mark.parametrize("provider", [None, NoOpTracerProvider(), trace.ProxyTracerProvider()])
def test_a_process_without_a_provider_does_not_trace(
    provider: AnyProvider | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one with a provider that records nothing."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert active() is None
    assert header_of_current_span("given") == "given"


def test_a_disabled_sdk_does_not_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SDK_DISABLED makes a provider without tracers."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False))
    assert active() is None


def test_a_provider_is_found_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may set it after it has opened a client; the next check sees it, and a new one after it."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert active() is None
    RecordedSpans().install(monkeypatch)
    first = active()
    assert first is not None
    assert active() is first
    RecordedSpans().install(monkeypatch)
    assert active() is not first


def test_the_check_survives_another_library_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that makes it fast is private: without it, the public function answers."""
    recorded = RecordedSpans()
    monkeypatch.delattr(trace, "_TRACER_PROVIDER")
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorded.provider)
    monkeypatch.setattr(sys.modules["orchestrator.tracing.spans"], "get_tracer_provider", lambda: recorded.provider)
    assert active() is not None
