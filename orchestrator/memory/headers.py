"""Headers of records, which the scripts write beside the content."""

from __future__ import annotations

from typing import Final

import msgspec


class RecordHeader(msgspec.Struct, array_like=True, frozen=True):
    """The header of a record, in the column order of `lua/includes/memory.lua`; names are encoded as in keys."""

    version: int
    score: float
    importance: float
    deadline: int
    stored: int
    kind: str
    action: str
    cell: str
    subject: str
    simulation: str
    superseded: str
    bytes: int
    x: float | bool
    y: float | bool
    meta: str
    type: str
    own: int
    vector: float = 0


decode_header: Final = msgspec.msgpack.Decoder(RecordHeader).decode
"""Decodes the header of a record."""
