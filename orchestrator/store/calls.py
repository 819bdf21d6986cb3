"""What a script wrapper hands to the store: which script, which arguments, how to read the answer.

A call is a value, so the same wrapper serves the asyncio store and the synchronous one of the pulse thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from orchestrator.store.script_files import all_scripts

T = TypeVar("T")
Argument: TypeAlias = str | bytes | int
pack_rows = msgspec.msgpack.Encoder().encode


def opaque(data: bytes) -> msgspec.Raw:
    """Wrap payload bytes for `pack_rows`: the decoder inside Redis knows MessagePack's text type, not its binary one."""
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
    args: Mapping[str, Argument]
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
