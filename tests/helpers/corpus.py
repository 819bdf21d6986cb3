"""Hostile values, kept once: texts, values and JSON texts that are data and must stay data.

Names that import name `CANARY`, a module that is on the path in the tests and must never be imported.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any, Final

CANARY: Final = "orc_hostile_canary"
"""A module that writes a mark when it is imported, and has `run` and `agent`."""
MEGABYTES: Final = "x" * 10_000_000


class _Reduced:
    def __reduce__(self) -> Any:
        return __import__, (CANARY,)


PICKLE: Final = pickle.dumps(_Reduced())
"""Imports the canary where it is loaded."""

TEXTS: Final[dict[str, str]] = {
    # Names that import
    "module": CANARY,
    "object of a module": f"{CANARY}:agent",
    "dotted name": f"{CANARY}.run",
    "os.system": "os.system",
    "eval": f"builtins.eval('__import__(\"{CANARY}\")')",
    "expression": f"__import__('{CANARY}').run()",
    "shell": f"$(python3 -c 'import {CANARY}')`id`; import {CANARY}",
    "dunder path": "__class__.__mro__[1].__subclasses__()",
    "format string": "{0.__class__.__init__.__globals__} %(key)s %n {}",
    "template": "{{7*7}}${7*7}<%= 7*7 %>${jndi:ldap://127.0.0.1/x}",
    "yaml": f"!!python/object/apply:{CANARY}.run []",
    "pickle": PICKLE.decode("latin-1"),
    "pickle in base64": base64.b64encode(PICKLE).decode(),
    "msgpack extension": b"\xc7\x04\x01\xde\xad\xbe\xef\xd6\xff\x00\x00\x00\x00".decode("latin-1"),
    # Places
    "path": "../../../../etc/passwd",
    "device": "/dev/zero",
    "file of an argument": "@/dev/zero",
    "file url": "file:///etc/passwd",
    "address": "http://127.0.0.1:1/latest/meta-data",
    # Keys of Redis and patterns
    "hash tag": "a}b{c}:task:*",
    "glob": "*?[a-z]\\",
    "colons": ":::",
    # Terminals, pages, logs
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>&amp;",
    "ansi": "\x1b[2J\x1b[31mred\x1b[0m\x1b[1A",
    "osc": "\x1b]0;title\x07\x1b]52;c;b3duZWQ=\x07\x1b]8;;http://x\x1b\\",
    "c1": "\x9b31m\x9d0;title\x9c\x85",
    "crlf": "one\r\nlevel=error forged\r\n\r\n$5\r\nhello\r\n",
    "nul": "one\0two",
    "direction": "\u202eevitisop\u2066x\u2069\u200f",
    "invisible": "a\u200bb\u2060\ufeff\U000e0041\u2028\u2029",
    "surrogate": "\ud800",
    "surrogate inside": "a\udc80b",
    "surrogates in the wrong order": "\udc00\ud800",
    # Sizes and edges
    "empty": "",
    "blanks": " \t\n ",
    "control character": "\x1f",
    "planes": "𝄞 é e\u0301 \U0010ffff",
    "256 bytes": "k" * 256,
    "257 bytes": "k" * 257,
    "10 MB": MEGABYTES,
}


def deep(levels: int) -> Any:
    """Return a value of so many levels."""
    value: Any = []
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES: Final[dict[str, Any]] = {
    **{f"number {number!r}": number for number in (2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1)},
    "number of 400 digits": 10**400,
    "number of 5000 digits": 10**5000,
    **{f"float {number!r}": number for number in (-0.0, 5e-324, 1e308, 0.1 + 0.2, 1e16, float("inf"), float("nan"))},
    "infinity inside": {"a": [float("-inf")]},
    "deep": deep(60),
    "too deep": deep(1000),
    "very deep": deep(100_000),
    "wide": [[]] * 1000,
    "empty name": {"": {"": []}},
    "names of Python": {"__class__": "os", "__reduce__": ["os.system", ["id"]], "__init__": {}, "self": 1, "ctx": 2},
    "names of decoders": {"py/object": f"{CANARY}.run", "$type": CANARY, "__jsonclass__": [CANARY], "@type": "x"},
    "names of our own": {"env": "x", "state": "done", "gen": 7, "args": {}, "skill": CANARY},
    "cjson null": [None, {"a": None}, [], {}],
    "bytes": b"\x80\x04",
    "set": {1, 2},
    "object": object(),
    "class": _Reduced,
    "name that is a number": {1: "x"},
    "name with a surrogate": {"\ud800": 1},
    **{f"text {name}": text for name, text in TEXTS.items()},
}
"""Arguments and results; some cannot be JSON."""

JSON_TEXTS: Final[dict[str, str]] = {
    "twin names": '{"a":1,"a":2}',
    "twin names inside": '[{"a":{"b":1,"c":2,"b":3}}]',
    "twin names, escaped": '{"a":1,"\\u0061":2}',
    "not a number": '{"a":NaN}',
    "infinity": "[Infinity]",
    "large float": '{"a":1e400}',
    "many digits": '{"a":' + "1" * 5000 + "}",
    "deep": "[" * 100_000,
    "deep and closed": '{"a":' * 5000 + "1" + "}" * 5000,
    "half a surrogate pair": '{"a":"\\ud800"}',
    "NUL": '{"a":"\\u0000"}',
    "comment": '{"a":1} // x',
    "two values": '{"a":1}{"a":2}',
    "single quotes": "{'a':1}",
}
"""JSON as a user types it, and what is nearly JSON."""
