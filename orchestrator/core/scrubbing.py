"""Prepares log events for writing: masks secrets, escapes unsafe characters, cuts long values.

The time to scrub a text grows linearly with its length for every text, because a log line holds the
interpreter lock while it is scrubbed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote

from orchestrator.core.escaping import UNSAFE, UNSAFE_IN_JSON, UNSAFE_IN_LINES, escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Event: TypeAlias = dict[str, Any]

MASK: Final = "********"
MAX_CHARS: Final = 8 * 1024
"""Longest text of one value. A longer one loses its end."""
MAX_TRACE_CHARS: Final = 16 * 1024
"""Longest traceback or stack. A longer one loses its middle, because its ends say most."""
MAX_ITEMS: Final = 100
"""Items of a list or a mapping that are written."""
MAX_EVENT_CHARS: Final = 128 * 1024
"""Characters of all values of one event."""
_MAX_DEPTH: Final = 6
_MIN_SECRET: Final = 4
"""Shorter secrets are not searched for, because they would mask ordinary words."""
_MARGIN: Final = 4 * 1024
"""Characters scrubbed beyond a cut and then dropped, so that no part of a secret at the cut stays."""

_SECRET_WORDS: Final = r"password|passwd|passphrase|token|secret|authorization|api_?key|credentials?"  # noqa: S105 - a pattern
_SECRET_KEY: Final = re.compile(rf"(?:.*[_.])?(?:{_SECRET_WORDS})", re.IGNORECASE)
# The search starts at `://`: a search for the scheme before it would start at each word.
_URL_PASSWORD: Final = re.compile(r"(://[^\s/:@]*):[^\s/]+@")
_QUERY_PASSWORD: Final = re.compile(rf"([?&][^\s=&?]{{0,64}}(?:{_SECRET_WORDS})=)[^\s&\"'<>]+", re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    rf"""((?:{_SECRET_WORDS})["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""", re.IGNORECASE
)
_CREDENTIALS: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_HINTS: Final = ("pass", "token", "secret", "authorization", "api", "credential", "bearer", "basic")
"""One of these is in each text that `_ASSIGNED` or `_CREDENTIALS` match; to look for them is much cheaper."""

_LONG: Final = ("exception", "stack")
"""Keys whose values have many lines on purpose."""


class Scrubber:
    """Masks secrets, escapes characters that could forge lines or control a terminal, and cuts long values.

    Args:
        secrets: values to mask wherever they occur, also percent-encoded or escaped.
        keep_lines: leave line breaks in values, for formats that encode them.
    """

    def __init__(self, secrets: Iterable[str], *, keep_lines: bool) -> None:
        self._forms: frozenset[str] = frozenset()
        self._known: re.Pattern[str] | None = None
        self._margin = _MARGIN
        self._keeps_lines, self._unsafe = keep_lines, UNSAFE_IN_JSON if keep_lines else UNSAFE
        # Names repeat on every line.
        self._name = lru_cache(2048)(self._clean_name)
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these values too."""
        self._forms |= {form for secret in secrets for form in _forms_of(secret)}
        # Longest first, so that a secret that contains another one is masked as a whole.
        known = sorted(self._forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._margin = max(_MARGIN, len(known[0]) if known else 0)
        self._name.cache_clear()

    def __call__(self, event: Mapping[Any, Any]) -> Event:
        """Return the event as it may be written."""
        left = _Allowance(MAX_EVENT_CHARS)
        clean: Event = {}
        for name, value in event.items():
            if name in _LONG and isinstance(value, str):
                text = self._cut(value, UNSAFE_IN_LINES, left.take(MAX_TRACE_CHARS, len(value)), ends=True)
                # A line of an exception's text must not look like one of the log.
                clean[name] = text if self._keeps_lines else text.replace("\n", "\n  ")
            elif isinstance(name, str) and len(name) <= _MARGIN:
                clean[self._name(name)] = self._value(name, value, 0, left)
            else:
                clean[self._clean_name(str(name))] = self._value(name, value, 0, left)
        return clean

    def _value(self, name: object, value: object, depth: int, left: _Allowance) -> object:
        if isinstance(value, str):
            return MASK if is_secret(name) else self._text(value, left)
        if value is None or isinstance(value, bool | int | float):
            # A number under such a name may be a secret; None and flags are not.
            return value if value is None or isinstance(value, bool) or not is_secret(name) else MASK
        if is_secret(name):
            return MASK
        if depth < _MAX_DEPTH and isinstance(value, dict):
            items = [*value.items()][:MAX_ITEMS]
            shown = {self._clean_name(str(key)): self._value(key, inner, depth + 1, left) for key, inner in items}
            return shown | {"...": f"{len(value) - MAX_ITEMS} more"} if len(value) > MAX_ITEMS else shown
        if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            several = [*value][:MAX_ITEMS]
            listed = [self._value(None, inner, depth + 1, left) for inner in several]
            return [*listed, f"... {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else listed
        # The text of enumerations, paths and masked secrets is what to print; other types fall back to their repr.
        return self._text(text_of(value, str), left)

    def _text(self, text: str, left: _Allowance) -> str:
        return self._cut(text, self._unsafe, left.take(MAX_CHARS, len(text)))

    def _clean_name(self, name: str) -> str:
        # In every format, because a name is written as it is.
        return self._cut(name, UNSAFE, MAX_CHARS)

    def _cut(self, text: str, unsafe: re.Pattern[str], limit: int, *, ends: bool = False) -> str:
        """Mask secrets and escape unsafe characters in at most `limit` characters of a text."""
        if len(text) <= limit:
            return escape(self._mask(text), unsafe)
        margin, head = self._margin, limit // 2 if ends else limit
        start = self._mask(text[: head + margin])[:-margin]
        end = self._mask(text[-(head + margin) :])[margin:] if ends and head else ""
        return escape(f"{start}... ({len(text) - limit} characters cut) ...{end}", unsafe)

    def mask_known(self, text: str) -> str:
        """Mask the known secrets, and the passwords of URLs."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        if "://" in text:
            text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
            if "=" in text:
                text = _QUERY_PASSWORD.sub(rf"\1{MASK}", text)
        return text

    def _mask(self, text: str) -> str:
        """Mask the known secrets, and text that looks like a secret."""
        text = self.mask_known(text)
        folded = text.lower() if text.isascii() else text.casefold()
        if any(hint in folded for hint in _HINTS):
            text = _ASSIGNED.sub(rf"\1{MASK}", _CREDENTIALS.sub(rf"\1 {MASK}", text))
        return text


_known: Final = Scrubber((), keep_lines=True)


def learn_secrets(secrets: Iterable[str]) -> None:
    """Let `mask_known` mask these values too, in this process."""
    if new := [secret for secret in secrets if secret not in _learned]:
        _learned.update(new)
        _known.add(new)


_learned: Final[set[str]] = set()


def mask_known(text: str) -> str:
    """Mask the secrets of the settings and the passwords of URLs, in a text that is stored or printed.

    What only looks like a secret stays, other than in the log: it may be what the reader of an error needs.
    """
    return _known.mask_known(text)


class _Allowance:
    """Counts the characters that an event may still have."""

    __slots__ = ("_left",)

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, most: int, wanted: int) -> int:
        """Take the characters of one text, and return how many it may have."""
        given = min(most, wanted, self._left)
        self._left -= given
        return given


@lru_cache(2048)
def _is_secret_name(name: str) -> bool:
    return _SECRET_KEY.fullmatch(name[-_MARGIN:].replace("-", "_")) is not None


def is_secret(name: object) -> bool:
    """Return whether a key's name says that its value is a secret."""
    return isinstance(name, str) and _is_secret_name(name)


def _forms_of(secret: str) -> set[str]:
    """Return a secret as it may occur in texts: as it is, percent-encoded, and escaped in a string literal."""
    plain = {secret, unquote(secret)}
    forms = {form for one in plain for form in (one, quote(one, safe=""), quote(one), repr(one)[1:-1])}
    forms |= {form.replace('"', '\\"') for form in forms}
    return {form for form in forms if len(form) >= _MIN_SECRET}


def text_of(value: object, write: Callable[[object], str]) -> str:
    """Return the text of a value, also of one whose `str` or `repr` raises."""
    if isinstance(value, bytes | bytearray):
        value = value[: MAX_CHARS + 1]
    try:
        return write(value)
    except Exception as failed:  # noqa: BLE001 - a log line must not fail for what it shows
        return f"<unprintable {type(value).__name__}: {type(failed).__name__}>"
