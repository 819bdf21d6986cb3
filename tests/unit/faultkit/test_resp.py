"""The framer cuts any byte stream into the same messages, however it arrives."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faultkit import resp
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINES = [
    b"+OK",
    b"-ERR no",
    b":42",
    b":-1",
    b"_",
    b"#t",
    b",1.5",
    b",inf",
    b"(3492890328409238509324850943850943825024385",
]


def _bulk(content: bytes, kind: bytes = b"$") -> bytes:
    return kind + b"%d\r\n%b\r\n" % (len(content), content)


def _aggregate(kind: bytes, parts: list[bytes]) -> bytes:
    per_count = 2 if kind == b"%" else 1
    whole = parts[: len(parts) // per_count * per_count]
    return kind + b"%d\r\n" % (len(whole) // per_count) + b"".join(whole)


_leaves = st.one_of(
    st.sampled_from([line + b"\r\n" for line in _LINES]),
    st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"%0\r\n", b"~0\r\n"]),
    st.binary(max_size=40).map(_bulk),
    st.binary(max_size=10).map(lambda content: _bulk(b"txt:" + content, b"=")),
    st.binary(max_size=10).map(lambda content: _bulk(content, b"!")),
)
_values = st.recursive(
    _leaves,
    lambda inner: st.builds(_aggregate, st.sampled_from([b"*", b"~", b"%"]), st.lists(inner, max_size=6)),
    max_leaves=20,
)
_messages = st.one_of(
    _values,
    st.lists(_values, min_size=1, max_size=4).map(lambda parts: _aggregate(b">", parts)),
    st.tuples(_values, _values, _values).map(lambda parts: b"|1\r\n" + parts[0] + parts[1] + parts[2]),
)


def _pieces(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    borders = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return (stream[start:end] for start, end in itertools.pairwise(borders))


@given(messages=st.lists(_messages, max_size=8), cuts=st.lists(st.integers(min_value=0), max_size=30))
def test_any_split_gives_the_same_frames(messages: list[bytes], cuts: list[int]) -> None:
    """Whatever the pieces, each message comes out whole, alone, in order and unchanged."""
    framer = resp.Framer()
    frames = [frame for piece in _pieces(b"".join(messages), cuts) for frame in framer.feed(piece)]
    assert frames == messages
    assert framer.pending_bytes == 0


@given(messages=st.lists(_messages, min_size=1, max_size=3))
def test_byte_by_byte(messages: list[bytes]) -> None:
    """A frame is given out with its last byte, neither earlier nor later."""
    framer = resp.Framer()
    for message in messages:
        for byte in message[:-1]:
            assert framer.feed(bytes([byte])) == []
        assert framer.feed(message[-1:]) == [message]


@given(words=st.lists(st.binary(max_size=50), min_size=1, max_size=10), limit=st.integers(0, 12))
def test_arguments(words: list[bytes], limit: int) -> None:
    """A request gives back the words it was built from, or the first few of them."""
    [frame] = resp.Framer(resp.REQUEST_TYPES).feed(_aggregate(b"*", [_bulk(word) for word in words]))
    assert list(resp.arguments(frame)) == words
    assert list(resp.arguments(frame, limit=limit)) == words[:limit]


def test_a_large_string_in_many_reads() -> None:
    """Eight mebibytes in pieces of 1,000 bytes come out as one frame."""
    message = _bulk(bytes(range(256)) * 32 * 1024)
    framer = resp.Framer()
    frames = [frame for start in range(0, len(message), 1000) for frame in framer.feed(message[start : start + 1000])]
    assert frames == [message]


@each_case(
    ("data", "complaint"),
    [
        (b"PING\r\n", "inline commands are not relayed"),
        (b"+OK\r\n", "inline commands are not relayed"),
        (b"*1\r\n:1\r\n", "inline commands are not relayed"),
        (b"*x\r\n", "is no length"),
        (b"*1\r\n$3\r\nabcde\r\n", "does not end in CR LF"),
    ],
)
def test_a_request_that_is_none_is_refused(data: bytes, complaint: str) -> None:
    """Bytes that are no array of strings raise an error that says so."""
    with pytest.raises(resp.ProtocolError, match=complaint):
        resp.Framer(resp.REQUEST_TYPES).feed(data)


@pytest.mark.parametrize("data", [b"$?\r\n", b"*?\r\n", b"hello", b"$-2\r\n"])
def test_a_reply_that_is_none_is_refused(data: bytes) -> None:
    """Streamed types, which Redis never sends, and other bytes raise an error instead of a wrong frame."""
    with pytest.raises(resp.ProtocolError):
        resp.Framer().feed(data)


def test_a_nested_array_is_no_argument() -> None:
    """A request with an array inside is refused when its arguments are read."""
    [frame] = resp.Framer(resp.REQUEST_TYPES).feed(b"*1\r\n*1\r\n$1\r\na\r\n")
    with pytest.raises(resp.ProtocolError, match="must be a bulk string"):
        list(resp.arguments(frame))


def test_first_text() -> None:
    """The first element of an array or push is told when it is a string, and nothing otherwise."""
    assert resp.first_text(b">2\r\n$7\r\nmessage\r\n:1\r\n") == b"message"
    assert resp.first_text(b"*1\r\n:1\r\n") == b""
    assert resp.first_text(b"*0\r\n") == b""
    assert resp.first_text(b"$1\r\na\r\n") == b""
