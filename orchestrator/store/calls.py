"""Describes script calls as values, so that one wrapper serves the asyncio store and the synchronous one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from orchestrator.core.errors import ServerRefused
from orchestrator.core.reading import read_as
from orchestrator.store.script_files import all_scripts

T_co = TypeVar("T_co", covariant=True)
Argument: TypeAlias = str | bytes | int
Arguments: TypeAlias = Mapping[str, Argument]
_encoder = msgspec.msgpack.Encoder()
_text_head = Struct(">BI").pack
_TEXT_32 = 0xDB
"""How MessagePack begins a text whose length has 32 bits."""


def pack_rows(rows: Iterable[Sequence[object] | msgspec.Struct]) -> bytes:
    """Pack lists, tuples or structs for an argument of type `rows`."""
    return _encoder.encode(rows)


def opaque(data: bytes) -> msgspec.Raw:
    """Wrap payload bytes for `pack_rows` as text, because the decoder inside Redis lacks the binary type."""
    return msgspec.Raw(_text_head(_TEXT_32, len(data)) + data)


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One script call.

    Attributes:
        script: name below `lua/`, as `tasks/submit`.
        args: the script's bindings by name; a missing one is sent empty (only the test clock may be missing).
        parse: turns the raw reply into a value.
    """

    script: str
    args: Arguments
    parse: Callable[[Any], T_co]

    @property
    def sha(self) -> str:
        """The script's SHA1 hash."""
        return all_scripts()[self.script].sha

    def read(self, reply: Any) -> T_co:
        """Turn the raw reply into a value.

        Raises:
            DamagedData: it cannot be read, because the script found damaged data.
            OrchestratorError: the reply is a refusal.
        """
        return read_as(self.script, self.parse, reply)

    def command(self) -> list[Argument]:
        """Return the EVALSHA command."""
        script, args = all_scripts()[self.script], self.args
        return [
            "EVALSHA",
            script.sha,
            len(script.keys),
            *[args[key.name] for key in script.keys],
            *[args.get(arg.name, "") for arg in script.args],
        ]

    def reading_command(self) -> list[Argument]:
        """Return the EVALSHA_RO command, which a replica runs.

        Raises:
            ServerRefused: the script changes data.
        """
        if not all_scripts()[self.script].reads_only:
            raise ServerRefused(f"{self.script} changes data, and this connection reads from a replica")
        return ["EVALSHA_RO", *self.command()[1:]]
