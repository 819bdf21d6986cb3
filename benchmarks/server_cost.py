"""Measures the server between two readings: commands, processor time, network bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis import Redis

_CHUNK_BYTES = 1 << 20
# `+1700000000.123456 [0 lua] "HSET" …`: the sender is within the first bytes of a line.
_SENDER_BYTES = 64
_END_MARK = "end of counting"
_OF_METER = {b"INFO", b"FLUSHALL", b"CONFIG", b"SLOWLOG", b"MONITOR", b"CLIENT", b"SCRIPT", b"FUNCTION"}
_END_LINE = f'"{_END_MARK}"\r'.encode()


@dataclass(frozen=True, slots=True)
class ServerReading:
    """Counters of the server; calls include those of scripts and of the meter."""

    calls_by_command: Mapping[str, int]
    calls_of_meter: int
    cpu_s: float
    net_bytes: int


@dataclass(frozen=True, slots=True)
class ServerCost:
    """Difference of two readings; calls include those of scripts, without those of the meter."""

    calls: int
    calls_by_command: Mapping[str, int]
    cpu_s: float
    net_bytes: int


def read_server(meter: Redis) -> ServerReading:
    """Take a reading over a connection whose own calls and bytes are subtracted."""
    own = meter.client_info()
    info = meter.info("everything")
    commands = {name.removeprefix("cmdstat_"): stat for name, stat in info.items() if name.startswith("cmdstat_")}
    own_bytes = int(own["tot-net-in"]) + int(own["tot-net-out"])
    return ServerReading(
        calls_by_command={name: stat["calls"] for name, stat in commands.items()},
        calls_of_meter=int(own["tot-cmds"]),
        cpu_s=info["used_cpu_user"] + info["used_cpu_sys"],
        net_bytes=info["total_net_input_bytes"] + info["total_net_output_bytes"] - own_bytes,
    )


def keep_slow_calls(meter: Redis) -> None:
    """Let the server keep calls that hold it for longer than a tenth of a millisecond."""
    meter.config_set("slowlog-log-slower-than", 100)
    meter.config_set("slowlog-max-len", 4096)


def longest_call_ms(meter: Redis) -> float:
    """Return the time of the longest call since the log was reset, without calls that only the meter makes."""
    taken_us = [one["duration"] for one in meter.slowlog_get(4096) if one["command"].split(b" ")[0] not in _OF_METER]
    return max(taken_us, default=0) / 1000


def cost_between(before: ServerReading, after: ServerReading) -> ServerCost:
    """Return the difference of two readings of the same meter."""
    calls = {
        name: count - before.calls_by_command.get(name, 0)
        for name, count in after.calls_by_command.items()
        if count != before.calls_by_command.get(name, 0)
    }
    return ServerCost(
        calls=sum(calls.values()) - (after.calls_of_meter - before.calls_of_meter),
        calls_by_command=calls,
        cpu_s=after.cpu_s - before.cpu_s,
        net_bytes=after.net_bytes - before.net_bytes,
    )


class SentCommands:
    """Counts the commands that clients send; the server's own counters include every call of a script.

    Reads MONITOR, which shows both apart. It slows the server down, so nothing is timed meanwhile.
    """

    def __init__(self, meter: Redis, url: str) -> None:
        self._meter, self._url = meter, url
        self._lines = 0
        self._of_meter = 0

    @property
    def count(self) -> int:
        """Commands during the block, without those of the meter; complete after the block."""
        return self._lines - self._of_meter

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the block ends."""
        with _connect(self._url) as connection:
            connection.sendall(b"MONITOR\r\n")
            before = int(self._meter.client_info()["tot-cmds"])
            reader = threading.Thread(target=self._read, args=(connection,))
            reader.start()
            try:
                yield
            finally:
                self._of_meter = int(self._meter.client_info()["tot-cmds"]) - before
                # Everything that the server has written is read before the reader stops.
                self._meter.echo(_END_MARK)
                reader.join()

    def _read(self, connection: socket.socket) -> None:
        rest = b""
        while chunk := connection.recv(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                sender = line[:_SENDER_BYTES].partition(b"]")[0]
                if line.endswith(_END_LINE):
                    return
                if b"[" in sender and not sender.endswith(b" lua"):
                    self._lines += 1


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(parts.path)
        return connection
    return socket.create_connection((parts.hostname, parts.port))


@dataclass(frozen=True, slots=True)
class Drain:
    """Result of one drain.

    Attributes:
        tasks: all tasks; base of `drain_cost`.
        loaded_tasks: tasks after the first ones; base of `load_cost`.
        timed_tasks: tasks after the ramp; base of the processor time.
        longest_call_ms: the longest command or script of any client, from the first submit to the last end.
    """

    tasks: int
    loaded_tasks: int
    timed_tasks: int
    rate_per_s: float
    load_cost: ServerCost
    drain_cost: ServerCost
    worker_cpu_s: float
    helper_cpu_s: float
    longest_call_ms: float
