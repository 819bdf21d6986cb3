"""What the server did between two readings: commands, processor time, network bytes, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis import Redis


@dataclass(frozen=True, slots=True)
class ServerReading:
    """Counters of the server at one moment."""

    sent_by_client: Mapping[str, int]
    sent_by_meter: int
    calls_by_command: Mapping[str, int]
    usec_by_command: Mapping[str, int]
    cpu_s: float
    net_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ServerCost:
    """The difference of two readings, without what the readings themselves cost in commands and bytes."""

    sent: int
    nested: int
    cpu_s: float
    net_bytes: int
    calls_by_command: Mapping[str, int]
    usec_by_command: Mapping[str, int]

    def __add__(self, other: ServerCost) -> ServerCost:
        return ServerCost(
            sent=self.sent + other.sent,
            nested=self.nested + other.nested,
            cpu_s=self.cpu_s + other.cpu_s,
            net_bytes=self.net_bytes + other.net_bytes,
            calls_by_command=_sum(self.calls_by_command, other.calls_by_command),
            usec_by_command=_sum(self.usec_by_command, other.usec_by_command),
        )


def read_server(meter: Redis) -> ServerReading:
    """Take a reading over a connection of its own, which is left out of the counts."""
    # Redis counts a script's calls in every total but one: `tot-cmds` of a client is what it really sent.
    own_id = str(meter.client_id())
    clients = {client["id"]: client for client in meter.client_list()}
    info = meter.info("everything")
    own = clients.pop(own_id)
    commands = {name.removeprefix("cmdstat_"): stat for name, stat in info.items() if name.startswith("cmdstat_")}
    own_bytes = int(own["tot-net-in"]) + int(own["tot-net-out"])
    return ServerReading(
        sent_by_client={client_id: int(client["tot-cmds"]) for client_id, client in clients.items()},
        sent_by_meter=int(own["tot-cmds"]),
        calls_by_command={name: stat["calls"] for name, stat in commands.items()},
        usec_by_command={name: stat["usec"] for name, stat in commands.items()},
        cpu_s=info["used_cpu_user"] + info["used_cpu_sys"],
        net_bytes=info["total_net_input_bytes"] + info["total_net_output_bytes"] - own_bytes,
        memory_bytes=info["used_memory"],
    )


def cost_between(before: ServerReading, after: ServerReading) -> ServerCost:
    """What happened between two readings of the same meter."""
    sent = sum(count - before.sent_by_client.get(name, 0) for name, count in after.sent_by_client.items())
    calls = _difference(before.calls_by_command, after.calls_by_command)
    own = after.sent_by_meter - before.sent_by_meter
    return ServerCost(
        sent=sent,
        nested=max(0, sum(calls.values()) - sent - own),
        cpu_s=after.cpu_s - before.cpu_s,
        net_bytes=after.net_bytes - before.net_bytes,
        calls_by_command=calls,
        usec_by_command=_difference(before.usec_by_command, after.usec_by_command),
    )


def _difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}
