"""Reads the processor time and the memory of the server, for `orc bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orchestrator.services import Services

_READ: Final = (("INFO", "cpu"), ("INFO", "memory"))


@dataclass(frozen=True, slots=True)
class ServerReading:
    """Counters of the whole server, so other programs on it count too."""

    cpu_s: float
    memory_bytes: int


async def read_cost(services: Services) -> ServerReading:
    """Read the processor time and the memory without that of the script interpreter, which varies."""
    cpu, memory = [_parsed(reply) for reply in await services.store.pipeline(_READ)]
    return ServerReading(
        float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
        int(memory["used_memory"]) - int(memory.get("used_memory_vm_total", 0)),
    )


def _parsed(reply: bytes | Exception) -> dict[str, str]:
    if isinstance(reply, Exception):
        raise reply
    lines = [line.partition(":") for line in reply.decode().splitlines() if ":" in line]
    return {name: value for name, _, value in lines}
