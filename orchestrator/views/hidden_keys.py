"""Masks the values of secret keys in JSON texts, also in the beginning of one, without making objects of it."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Final

from orchestrator.core.scrubbing import MASK, is_secret

_TOKEN: Final = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*+)(?P<end>"(?P<key>\s*:\s*)?)?', re.DOTALL)
"""A string, and the colon behind it if it is a key. One without an end is the last of a text that was cut."""
_NESTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_PLAIN: Final = re.compile(r"[^,\]}\s]*+")
_SHOWN: Final = frozenset({"null", "true", "false"})
_KEY_CHARS: Final = 200
"""The end of a longer key decides."""
_PARTS: Final = re.compile(r"[/:]")
"""Ends a part of a name, such as that of a path; the last part decides."""
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def mask_keys(text: str) -> str:
    """Return JSON with `"********"` as the value of each key that names a secret, such as `api_key` or `authToken`.

    The rule for names is that of log records, for the last part of a name such as `mail/token`. Null, true and false
    are shown.
    """
    parts: list[str] = []
    kept, at = 0, 0
    while (found := _TOKEN.search(text, at)) is not None:
        at = found.end()
        if found["key"] is None or not _is_secret_key(found["text"][-_KEY_CHARS:]):
            continue
        end = _end_of_value(text, at)
        if text[at:end] in _SHOWN:
            continue
        parts += [text[kept:at], f'"{MASK}"']
        kept = at = end
    return "".join([*parts, text[kept:]]) if parts else text


def names_secret(name: str) -> bool:
    """Return whether a name is one whose value `mask_keys` masks."""
    return is_secret(_HUMP.sub("_", _PARTS.split(name[-_KEY_CHARS:])[-1]))


@lru_cache(2048)
def _is_secret_key(raw: str) -> bool:
    name = raw
    if "\\" in raw:
        try:
            name = json.loads(f'"{raw}"')
        except ValueError:
            return True  # a key that cannot be read may name anything
    return names_secret(name)


def _end_of_value(text: str, at: int) -> int:
    """Return the end of the value that begins at a position, or of the text if it was cut."""
    first = text[at : at + 1]
    if first == '"':
        found = _TOKEN.match(text, at)
        assert found is not None
        return found.start() + len(found["text"]) + (2 if found["end"] else 1)
    if first not in {"{", "["}:
        plain = _PLAIN.match(text, at)
        return plain.end() if plain else at
    depth = 0
    for found in _NESTED.finditer(text, at):
        if found[0] in {"{", "["}:
            depth += 1
        elif found[0] in {"}", "]"}:
            depth -= 1
            if depth == 0:
                return found.end()
    return len(text)
