"""JSON validation: what comes back, what is refused."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InvalidInput, UnreadableValue
from orchestrator.core.payload import decode_json, encode_json
from tests.helpers.cases import each_case
from tests.helpers.json_values import alike, json_values


def encode(value: Any, *, max_bytes: int = 1_000_000, max_depth: int = 64) -> bytes:
    """Encode as arguments."""
    return encode_json("arguments of 'x'", value, max_bytes=max_bytes, max_depth=max_depth)


@given(json_values())
def test_any_json_comes_back(value: Any) -> None:
    """What is encoded decodes to an equal value of the same types."""
    assert alike(decode_json(encode(value)), value)


@each_case(
    "value",
    [
        {},
        [],
        {"a": []},
        {"a": {}},
        "",
        {"": ""},
        2**53 + 1,
        2**64,
        -(2**63) - 1,
        1.0,
        -0.0,
        5e-324,
        True,
        None,
        "𝄞\x00é",
    ],
)
def test_awkward_values_come_back(value: Any) -> None:
    """Empty containers, large integers, whole floats and odd texts are neither merged nor rounded."""
    assert alike(decode_json(encode(value)), value)


@given(json_values())
def test_decoding_is_that_of_the_standard_library(value: Any) -> None:
    """JSON of other programs decodes as `json.loads` decodes it."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        data = text.encode(errors="surrogatepass")
        assert alike(decode_json(data), json.loads(data))


@each_case(
    "text",
    [
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        "NaN",
        "[Infinity, -Infinity]",
        "1e400",
        "-0",
        "1E5",
        "123456789.123456789123456789",
        "18446744073709551616",
        "-9223372036854775809",
        '{"a": 1, "a": 2}',
        '"\\u0000"',
        " [1 , 2]\n",
    ],
)
def test_odd_texts_decode_as_before(text: str) -> None:
    """What one decoder refuses the other one reads, and numbers keep their types."""
    assert repr(decode_json(text.encode())) == repr(json.loads(text))


def test_invalid_json_is_an_error() -> None:
    """What is no JSON, or nested too deep for Python, raises an error that is a ValueError too."""
    deep = b"[" * 200_000
    for data in (b"", b"{", b"[1,]", b"tru", b"\xff", b"1" * 5000, deep, deep + b"]" * 200_000, b'{"a":' * 200_000):
        with pytest.raises(UnreadableValue, match=r"^a stored value is "):
            decode_json(data)


def test_messages_are_bounded() -> None:
    """An error that repeats a value of megabytes keeps its beginning and its end."""
    told = str(InvalidInput(f"priority {'x' * 10_000_000!r} is not known"))
    assert (len(told) < 17_000, told[:10], told[-10:]) == (True, "priority '", " not known")


def test_tuples_and_subclasses_are_sent_as_what_they_are() -> None:
    """A tuple is a list; an enum, a named text or an ordered dict is its plain value."""

    class Colour(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 1

    value = {"t": (1, (2,)), "c": Colour.RED, "l": Level.HIGH, "o": OrderedDict(a=1), Colour.RED: 0}
    assert decode_json(encode(value)) == {"t": [1, [2]], "c": "red", "l": 1, "o": {"a": 1}, "red": 0}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(number: float) -> None:
    """NaN and infinities are named in the refusal, wherever they are."""
    with pytest.raises(InvalidInput, match="NaN, infinities"):
        encode({"a": [1, {"b": number}]})


def test_a_number_too_long_to_print_is_refused() -> None:
    """A whole number beyond Python's limit for printing is a refusal, not a crash."""
    with pytest.raises(InvalidInput, match="cannot be sent"):
        encode({"a": 10**5000})


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\udfff": 1}, ["x", ["\ud83d"]]])
def test_half_characters_are_refused(value: Any) -> None:
    """Lone surrogates are refused in values and in keys."""
    with pytest.raises(InvalidInput, match="unpaired surrogate"):
        encode(value)


@each_case("key", [1, None, True, 1.5, (1,), b"k"])
def test_keys_that_are_no_texts_are_refused(key: Any) -> None:
    """JSON would turn such a key into a text, so it is refused, also deep inside."""
    with pytest.raises(InvalidInput, match="not a text"):
        encode({"a": [{key: 1}]})
    with pytest.raises(InvalidInput, match="not a text"):
        encode({"a": 1, key: 1})


@each_case("value", [{1, 2}, b"bytes", datetime.now(UTC), Decimal(1), object(), 1j, range(3), iter(())])
def test_other_types_are_refused_by_name(value: Any) -> None:
    """The refusal names the type that JSON cannot hold."""
    with pytest.raises(InvalidInput, match=type(value).__name__):
        encode({"a": [value]})
    with pytest.raises(InvalidInput, match=type(value).__name__):
        encode({"a": value})


def nested(levels: int) -> Any:
    """Lists and objects in each other."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_depth_is_allowed_up_to_the_cap() -> None:
    """As many levels as the cap says pass, one more is refused."""
    assert decode_json(encode(nested(64))) == nested(64)
    with pytest.raises(InvalidInput, match="deeper than 64"):
        encode(nested(65))
    assert encode({"a": 1}, max_depth=1) == b'{"a":1}'
    with pytest.raises(InvalidInput, match="deeper than 0"):
        encode({"a": 1}, max_depth=0)


def test_a_bottomless_value_is_refused() -> None:
    """A list that contains itself, or one far too deep for the interpreter, gets a sentence."""
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, nested(100_000)):
        with pytest.raises(InvalidInput, match="deeper than"):
            encode(value)


def test_lists_that_multiply_are_refused_quickly() -> None:
    """A few objects that stand for 2^60 items are refused for their size, not expanded."""
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidInput, match="allowed"):
        encode(value, max_bytes=10_000)


def test_size_is_counted_in_bytes() -> None:
    """The cap counts UTF-8 bytes of JSON: exactly at the cap passes, one more is refused with both numbers."""
    assert len(encode("é" * 49, max_bytes=100)) == 100
    with pytest.raises(InvalidInput, match=r"would be 102 bytes .* more than the 100"):
        encode("é" * 50, max_bytes=100)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_every_bit(number: float) -> None:
    """A finite float comes back with the same bits, the sign of zero included."""
    back = decode_json(encode(number))
    assert type(back) is float
    assert math.copysign(1, back) == math.copysign(1, number)
    assert back == number


def test_the_bytes_are_plain_json() -> None:
    """Other languages read it: compact UTF-8 JSON without escapes that nobody needs."""
    assert encode({"a": ["é", 1.0]}) == '{"a":["é",1.0]}'.encode()
    assert json.loads(encode({"quote": '"\\\n'})) == {"quote": '"\\\n'}
