"""Headers of records, which the scripts write beside the content."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from orchestrator.core.reading import msgpack_reader

_MOST: Final = 1e300
"""Above all numbers that a record may have, and below infinity."""


class RecordHeader(msgspec.Struct, array_like=True, frozen=True):
    """The header of a record, in the column order of `lua/includes/memory.lua`; names are encoded as in keys."""

    version: int
    score: Annotated[float, Meta(ge=-_MOST, le=_MOST)]
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
    x: Annotated[float, Meta(ge=-_MOST, le=_MOST)] | bool
    y: Annotated[float, Meta(ge=-_MOST, le=_MOST)] | bool
    meta: str
    type: str
    own: int
    vector: Annotated[float, Meta(ge=-_MOST, le=_MOST)] = 0


decode_header: Final = msgpack_reader(RecordHeader)
"""Decodes the header of a record."""
