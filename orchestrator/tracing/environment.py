"""Sets up the export of spans from the variables of OpenTelemetry, in the programs that users do not write.

`orc worker run` and `orc supervisor run` do so if the variables ask for it and no code of the agents has set a tracer
provider. Only public parts of the SDK are used: its provider and its batch processor read their variables themselves,
and exporters are found by their entry points.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.formats import program_version
from orchestrator.core.log import get_logger
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FLUSH_S: Final = 2.0
"""Time to export the last spans of a process that ends. Later ones are lost."""
INSTALL: Final = "pip install 'redis-orchestrator[otel]' opentelemetry-sdk opentelemetry-exporter-otlp"

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final[Mapping[str, tuple[str, ...]]] = {
    "grpc": ("otlp_proto_grpc",),
    "http/protobuf": ("otlp_proto_http",),
    # The SDK prefers gRPC when nothing is said.
    "": ("otlp_proto_grpc", "otlp_proto_http"),
}
_log = get_logger(__name__)


class _Unavailable(Exception):
    """A part is missing; the message names it and the command that installs it."""


@contextmanager
def exported_spans(service: str, instance: str, *, flush_s: float = FLUSH_S) -> Iterator[None]:
    """Export the spans of a process while a block runs, and those that are left when it ends.

    What is missing costs one line of the log: a process works without traces.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has another.
        instance: id of this process.
        flush_s: time for the spans that are left.
    """
    wanted = wanted_exporters(os.environ)
    if wanted and active() is None:
        try:
            _start(wanted, service, instance)
        except _Unavailable as missing:
            _log.warning("tracing_unavailable", error=str(missing))
        except Exception as failure:  # noqa: BLE001 - exporters of other projects raise anything
            _log.warning("tracing_unavailable", error=f"{type(failure).__name__}: {failure}")
        else:
            _log.info("tracing_started", exporters=wanted, service=service)
    try:
        yield
    finally:
        _flush(flush_s)


def wanted_exporters(environ: Mapping[str, str]) -> list[str]:
    """Return the exporters that the variables name; none if they ask for no traces.

    `OTEL_TRACES_EXPORTER` decides. Without it, an endpoint of OTLP asks for `otlp`. The specification makes `otlp` the
    default even without an endpoint; then each worker of a machine with the SDK would try to reach a collector.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = environ.get(_EXPORTER, "").strip()
    if not named and any(environ.get(name) for name in _ENDPOINTS):
        named = "otlp"
    return [name for part in named.split(",") if (name := part.strip()) and name.lower() != "none"]


def _start(wanted: list[str], service: str, instance: str) -> None:
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise _Unavailable(
            f"the environment asks for traces ({_asked()}), but {missing.name} is not installed; run: {INSTALL}"
        ) from None
    made = [_find_exporter(name, os.environ)() for name in wanted]
    attributes = {"service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        attributes |= {"service.name": service, "service.version": program_version()}
    # `_flush` ends it, in bounded time.
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _find_exporter(name: str, environ: Mapping[str, str]) -> Any:
    names: tuple[str, ...] = (name,)
    if name == "otlp":
        protocol = next((environ[each].strip() for each in _PROTOCOLS if environ.get(each)), "")
        if protocol not in _OTLP:
            raise _Unavailable(f"the OTLP protocol {protocol!r} is not known; use grpc or http/protobuf")
        names = _OTLP[protocol]
    for each in names:
        for point in entry_points(group="opentelemetry_traces_exporter", name=each):
            return point.load()
    fix = (
        "run: pip install opentelemetry-exporter-otlp" if name.startswith("otlp") else "install the package that has it"
    )
    raise _Unavailable(f"no exporter {' or '.join(names)} is installed ({_asked()}); {fix}")


def _asked() -> str:
    found = [name for name in (_EXPORTER, *_ENDPOINTS) if os.environ.get(name)]
    return ", ".join(found)


def _flush(within_s: float) -> None:
    """Export what is left. Also the provider that an agent has set: a forked worker runs no exit handlers."""
    if active() is None:
        return
    provider: Any = sys.modules["opentelemetry.trace"].get_tracer_provider()
    flush = getattr(provider, "force_flush", None)
    if flush is None:
        return
    # An exporter may try for a minute to reach its collector.
    thread = threading.Thread(target=flush, name="flush-spans", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        _log.warning("spans_lost", waited_s=within_s)
