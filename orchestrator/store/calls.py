"""What a script wrapper hands to the store: which script, which arguments, how to read the answer.

A call is a value, so the same wrapper serves the asyncio store and the synchronous one of the heartbeat thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from orchestrator.store.script_files import all_scripts

T = TypeVar("T")
Argument: TypeAlias = str | bytes | int
Arguments: TypeAlias = Mapping[str, Argument]
_encoder = msgspec.msgpack.Encoder()


def pack_rows(rows: Iterable[Sequence[object] | msgspec.Struct]) -> bytes:
    """Pack rows for an argument of type `rows`: lists, tuples, or structs that are packed like these."""
    return _encoder.encode(rows)


def opaque(data: bytes) -> msgspec.Raw:
    """Wrap payload bytes for `pack_rows`: the decoder inside Redis knows texts, not MessagePack's binary type."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call.

    Attributes:
        script: name below `lua/`, as `tasks/submit`.
        args: the script's bindings by name; those left out are sent empty (only the test clock may be).
        parse: turns the raw reply into a value.
    """

    script: str
    args: Arguments
    parse: Callable[[Any], T]

    @property
    def sha(self) -> str:
        """The hash under which the server knows the script."""
        return all_scripts()[self.script].sha

    def command(self) -> list[Argument]:
        """The EVALSHA command to send."""
        script, args = all_scripts()[self.script], self.args
        return [
            "EVALSHA",
            script.sha,
            len(script.keys),
            *[args[key.name] for key in script.keys],
            *[args.get(arg.name, "") for arg in script.args],
        ]
