"""What people type is read as they meant it, or refused with a sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.cli.terminal import inputs
from orchestrator.core.errors import ConfigError, InvalidInput
from orchestrator.core.settings_sources import load_settings
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from pathlib import Path


@each_case(
    ("pair", "value"),
    [
        ("x=3", 3),
        ("x=1.0", 1.0),
        ("x=true", True),
        ("x=null", None),
        ('x="3"', "3"),
        ("x=[1, {}]", [1, {}]),
        ("x=", ""),
        ("x=Ada", "Ada"),
        ("x=a=b", "a=b"),
        ("x=007", "007"),
        ("x=NaN", "NaN"),
        ("x=-5", -5),
        ("x=9007199254740993", 2**53 + 1),
        ("x=" + "[" * 100_000, "[" * 100_000),
    ],
)
def test_pair(pair: str, value: object) -> None:
    """A value is JSON when it parses, otherwise text."""
    given = inputs.arguments(None, [pair])["x"]
    assert given == value
    assert type(given) is type(value)


def test_pairs_win_over_body() -> None:
    """A pair replaces what the body says; the last pair of a name counts."""
    assert inputs.arguments('{"a": 1, "b": 2}', ["b=3", "b=4"]) == {"a": 1, "b": 4}


@each_case("body", ["{", "[1]", "3", "null", "", "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000])
def test_body_refused(body: str) -> None:
    """A body that is no JSON object, or says one thing twice, is refused with an example of a good one."""
    with pytest.raises(InvalidInput, match="words"):
        inputs.arguments(body, [])


def test_pair_in_place_of_a_body() -> None:
    """A pair without its option is named as one."""
    with pytest.raises(InvalidInput, match="write `-a topic=redis`"):
        inputs.arguments("topic=redis", [])


@pytest.mark.parametrize("pair", ["x", "=3", ""])
def test_pair_refused(pair: str) -> None:
    """A pair without a name or an equals sign is refused."""
    with pytest.raises(InvalidInput, match="name=value"):
        inputs.arguments(None, [pair])


def test_body_from_file(tmp_path: Path) -> None:
    """`@file` reads a file, also one that begins with a byte order mark."""
    (tmp_path / "body.json").write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xbc"}')
    assert inputs.arguments(f"@{tmp_path}/body.json", []) == {"a": "ü"}


@pytest.mark.parametrize(("name", "message"), [("missing", "cannot read"), ("latin", "UTF-8"), ("", "cannot read")])
def test_body_from_bad_file(tmp_path: Path, name: str, message: str) -> None:
    """A file that is missing or no text is named."""
    (tmp_path / "latin").write_bytes(b'{"a": "\xfc"}')
    with pytest.raises(InvalidInput, match=message):
        inputs.arguments(f"@{tmp_path}/{name}", [])


def test_files_without_end() -> None:
    """They are refused, and not read until memory is short; so is a configuration file."""
    with pytest.raises(InvalidInput, match="/dev/zero: it is longer than 64 MiB"):
        inputs.arguments("@/dev/zero", [])
    with pytest.raises(ConfigError, match="/dev/zero cannot be read: it is longer than 1 MiB"):
        load_settings(config="/dev/zero", environ={})


def test_json_with_a_name_that_occurs_twice() -> None:
    """It is refused, and not taken for text."""
    with pytest.raises(InvalidInput, match="'a' occurs twice"):
        inputs.json_or_text('{"a": 1, "a": 2}')


@each_case(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("500ms", 0.5),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("7", 7),
        ("0", 0),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    """Durations are numbers with units, or plain seconds."""
    assert inputs.duration_s("--delay", text) == seconds


@each_case("text", ["", "x", "5x", "-5s", "5 minutes", "h", "1h!", "nan", "inf", "1e3", "٣s"])
def test_duration_refused(text: str) -> None:
    """Anything else is refused by the name of its option."""
    with pytest.raises(InvalidInput, match="--delay"):
        inputs.duration_s("--delay", text)


def test_moment() -> None:
    """A time needs its zone."""
    assert inputs.moment("--at", "2030-01-31T12:00:00Z") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    for wrong in ("2030-01-31T12:00:00", "tomorrow", ""):
        with pytest.raises(InvalidInput, match="--at"):
            inputs.moment("--at", wrong)


@pytest.mark.parametrize(("text", "level"), [("high", "high"), ("3", 3), ("-1", "-1"), ("²", "²")])
def test_priority(text: str, level: Any) -> None:
    """Digits are a number; whether there is such a level is for the client to say."""
    assert inputs.priority(text) == level
