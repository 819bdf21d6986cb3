"""Defines descriptions of skills, which workers store and clients read: docstrings and JSON schemas."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from orchestrator.core.reading import json_reader

MAX_BYTES: Final = 16 * 1024
"""Size of a stored description. A larger one is stored without its schemas."""
MAX_DOC_CHARS: Final = 4000
JsonSchema: TypeAlias = dict[str, Any]
"""A JSON schema, which names arguments and may have values of them as defaults."""


class SkillDescription(msgspec.Struct, frozen=True):
    """Documentation and JSON schemas of a skill, as one version of its handler declares them.

    Attributes:
        doc: docstring of the handler, at most 4000 characters.
        arguments: JSON schema of the arguments; None if a type has none, or if the schemas are too large.
        result: JSON schema of the result; None likewise.
        omitted_bytes: size of schemas that were too large to be stored; else 0.
    """

    doc: str = ""
    arguments: JsonSchema | None = None
    result: JsonSchema | None = None
    omitted_bytes: int = 0

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.partition("\n")[0]


def encode_description(description: SkillDescription) -> bytes:
    """Encode as JSON of at most `MAX_BYTES`; leaves the schemas out if they are too large."""
    description = msgspec.structs.replace(description, doc=description.doc[:MAX_DOC_CHARS])
    data = msgspec.json.encode(description)
    if len(data) <= MAX_BYTES:
        return data
    omitted = len(msgspec.json.encode((description.arguments, description.result)))
    return msgspec.json.encode(msgspec.structs.replace(description, arguments=None, result=None, omitted_bytes=omitted))


decode_description = json_reader(SkillDescription)
