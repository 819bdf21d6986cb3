"""Escapes the characters that control a terminal, start a line, or hide or reorder what a reader sees.

Text that programs have stored is printed and logged through this module only.
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = (
    "\x7f-\x9f"  # DEL and C1: terminals obey these as they obey ESC
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # no width, or a mark of direction
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0d\ufeff\ufff0-\ufffb"
    "\ud800-\udfff"  # no text: an encoder refuses them
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # tags and other characters that are not shown
)
UNSAFE: Final = re.compile(f"[\x00-\x1f{_HIDDEN}]")
UNSAFE_IN_LINES: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")
"""Without the end of a line and the tab."""
UNSAFE_IN_JSON: Final = re.compile(f"[{_HIDDEN}]")
"""Without those that a JSON encoder escapes."""


def escape(text: str, unsafe: re.Pattern[str] = UNSAFE) -> str:
    r"""Write each unsafe character as `\x1b` or `\u202e`."""
    return text if text.isascii() and text.isprintable() else unsafe.sub(_escaped, text)


def escape_json(text: str) -> str:
    """Escape in a JSON text; it keeps its value."""
    return text if text.isascii() and "\x7f" not in text else UNSAFE_IN_JSON.sub(_escaped_in_json, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    # Beyond 16 bits JSON takes a pair.
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
