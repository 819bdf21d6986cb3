"""Validates and encodes user JSON: a value decodes to an equal value, or is refused."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.core.errors import InvalidInput, UnreadableValue

if TYPE_CHECKING:
    from collections.abc import Collection


_TEXT: Final = frozenset({str})
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_encode_plain: Final = msgspec.json.Encoder().encode
_decode_plain: Final = msgspec.json.Decoder().decode
_encode_any: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode


def encode_json(what: str, value: Any, *, max_bytes: int, max_depth: int) -> bytes:
    """Encode `value` as JSON bytes.

    Args:
        what: name of the value in errors, as `arguments of 'summarize'`.
        value: lists (tuples decode as lists), dicts with string keys, strings, integers, finite floats, booleans, None.
        max_bytes: limit of the encoded size.
        max_depth: limit of nested lists and objects.

    Raises:
        InvalidInput: JSON cannot hold the value, or would change it; the message names the place.
    """
    if _is_plain(value, max_depth, max_bytes):
        try:
            data: bytes = _encode_plain(value)
        except ValueError:
            pass  # half a character, or a number too long to print: the careful way names it
        else:
            if len(data) <= max_bytes:
                return data
    return _encode_carefully(what, value, max_depth, max_bytes)


def _is_plain(value: Any, max_depth: int, max_items: int) -> bool:
    """Return whether a value has JSON types only, is finite and not too deep. Fast, because nearly all values are."""
    if type(value) is dict:
        # Most arguments and results are flat, so they get one loop without lists.
        for name, child in value.items():
            if type(name) is not str or type(child) not in _SCALARS:
                break
        else:
            return max_depth > 0 and len(value) <= max_items
    level = [] if type(value) in _SCALARS else [value]
    seen = 0
    while level:
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is not list and not (kind is dict and _TEXT.issuperset(map(type, item))):
                return False
            children: Collection[Any] = item.values() if kind is dict else item
            seen += len(children)
            for child in children:
                kind = type(child)
                if kind not in _SCALARS and not (kind is float and isfinite(child)):
                    deeper.append(child)
        max_depth -= 1
        if max_depth < 0 or seen > max_items:
            return False
        level = deeper
    return True


def _encode_carefully(what: str, value: Any, max_depth: int, max_bytes: int) -> bytes:
    """Encode a value that may be invalid; the error names the place and the reason."""
    _check(what, value, max_depth, max_bytes)
    try:
        data = _encode_any(value).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} would contain an unpaired surrogate; send valid Unicode") from None
    except ValueError as refused:
        # An integer too long for Python to print, or a float that is not finite.
        raise InvalidInput(
            f"{what} cannot be sent: {refused}; NaN, infinities and such numbers have no place in JSON"
        ) from None
    if len(data) > max_bytes:
        raise InvalidInput(
            f"{what} would be {len(data)} bytes of JSON, more than the {max_bytes} allowed; "
            "store the data and send its address"
        )
    return data


def decode_json(data: bytes) -> Any:
    """Decode JSON from `encode_json` or pydantic.

    Raises:
        UnreadableValue: it is no JSON, or nested deeper than Python decodes.
    """
    try:
        return _decode_plain(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise UnreadableValue("a stored value is nested too deep to be read") from None
    try:
        # It reads what msgspec refuses: half a surrogate pair, NaN, infinity, numbers beyond a float.
        return json.loads(data)
    except (ValueError, RecursionError) as wrong:
        reason = "it is nested too deep" if isinstance(wrong, RecursionError) else str(wrong)
        raise UnreadableValue(f"a stored value is no JSON: {reason}") from None


def _check(what: str, value: Any, max_depth: int, max_items: int) -> None:
    # An explicit stack, so that a deep value gets a message instead of a RecursionError.
    stack: list[tuple[Any, int]] = [(value, 0)]
    seen = 0
    while stack:
        item, depth = stack.pop()
        kind = type(item)
        if kind is str or kind is int or kind is bool or kind is float or item is None:
            continue
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise InvalidInput(
                        f"{what} would contain the key {key!r}, which is not a text; JSON would turn it into one"
                    )
            children: Collection[Any] = item.values()
        elif isinstance(item, list | tuple):
            children = item
        elif isinstance(item, (str, int, float)):
            continue
        else:
            raise InvalidInput(
                f"{what} would contain a {kind.__name__}, which JSON cannot hold; send text, numbers, lists or dicts"
            )
        if depth >= max_depth:
            raise InvalidInput(f"{what} would be nested deeper than {max_depth} levels")
        seen += len(children)
        if seen > max_items:
            # Every item takes at least a byte. A list that contains itself would never end.
            raise InvalidInput(
                f"{what} would be more than the {max_items} bytes of JSON allowed; store the data and send its address"
            )
        stack.extend([(child, depth + 1) for child in children])
