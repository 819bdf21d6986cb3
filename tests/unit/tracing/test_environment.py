"""When the variables of OpenTelemetry ask for spans, and what is said when a part is missing."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

from orchestrator.tracing.environment import exported_spans, wanted_exporters
from tests.helpers.spans import RecordedSpans

if TYPE_CHECKING:
    from collections.abc import Mapping

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a tracer provider, and with variables of its own."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    for name in ("OTEL_TRACES_EXPORTER", ENDPOINT, "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environ", "exporters"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://c:4318"}, []),
        ({ENDPOINT: "http://c:4318"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, []),
    ],
)
def test_what_asks_for_spans(environ: Mapping[str, str], exporters: list[str]) -> None:
    """The variable with the exporters decides, or an endpoint."""
    assert wanted_exporters(environ) == exporters


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "nothing"}, "no exporter nothing is installed"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "'smoke' is not known"),
    ],
)
def test_a_missing_part_is_one_line(
    environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process works on, without a provider."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with exported_spans("test", "1"):
        pass
    (record,) = caplog.records
    assert told in str(record.msg)
    assert trace._TRACER_PROVIDER is None


def test_a_missing_sdk_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the command that installs it."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with exported_spans("test", "1"):
        pass
    (record,) = caplog.records
    assert "pip install 'redis-orchestrator[otel]' opentelemetry-sdk" in str(record.msg)


def test_a_provider_of_the_user_stays_and_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of the agents decides before the environment; a forked worker runs no exit handlers, so it flushes."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    recorded = RecordedSpans()
    recorded.install(monkeypatch)
    flushed: list[bool] = []
    monkeypatch.setattr(recorded.provider, "force_flush", lambda: flushed.append(True))
    with exported_spans("test", "1"):
        assert trace.get_tracer_provider() is recorded.provider
        assert flushed == []
    assert flushed == [True]


def test_a_flush_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A collector that does not answer delays the end of a process by a known time."""
    recorded, answers = RecordedSpans(), threading.Event()
    recorded.install(monkeypatch)
    monkeypatch.setattr(recorded.provider, "force_flush", lambda: answers.wait(10))
    began_s = time.monotonic()
    with exported_spans("test", "1", flush_s=0.05):
        pass
    answers.set()
    assert time.monotonic() - began_s < 5
    events: list[Any] = [record.msg for record in caplog.records]
    assert [event.event for event in events] == ["spans_lost"]
