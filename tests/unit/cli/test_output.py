"""Tables, JSON and errors say what there is, and nothing in them commands a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.failures import error_line, exit_code_of
from orchestrator.cli.terminal.parsing import globals_after_words
from orchestrator.core.errors import ConfigError, NotFound, QueueFull, ServerUnavailable, TaskFailed
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = "red \x1b[31m, \x9b2J, \u202egnp.exe, line\nbreak, \x00"


def test_table() -> None:
    """Columns line up, nothing is padded at the end of a line, and nothing is coloured off a terminal."""
    text = output.table([["a", "1"], ["longer", "22"]], ["name", "last_seen"])
    assert text.splitlines() == ["NAME    LAST SEEN", "a       1", "longer  22"]


def test_hostile_text_in_table(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Control characters, line breaks and direction overrides are escaped in every form."""
    for form in ("table", "json", "jsonl", "id"):
        output.show_list(form, [{"id": HOSTILE}], ("id",), key="id")
        printed = capfdbinary.readouterr().out.decode()
        for unsafe in "\x1b\x9b\u202e\x00":
            assert unsafe not in printed
        if form.startswith("json"):
            read = json.loads(printed)
            assert (read["items"][0] if form == "json" else read) == {"id": HOSTILE}


def test_json_keeps_user_digits() -> None:
    """User data inside a document keeps its digits, indented or not."""
    data = b'{"a":1.0,"b":9007199254740993,"c":1e400,"d":[],"e":{}}'
    for indent in (False, True):
        text = output.json_text({"result": output.raw_json(data)}, indent=indent)
        for digits in ("1.0", "9007199254740993", "1e400", "[]", "{}"):
            assert digits in text


@each_case(
    ("offset_s", "text"),
    [(0, "0 s ago"), (59.5, "59 s ago"), (61, "1 min ago"), (7200, "2 h ago"), (200_000, "2 d ago"), (-90, "in 1 min")],
)
def test_ago(offset_s: float, text: str) -> None:
    """Times are told in their largest unit."""
    assert output.ago(datetime.now(UTC) - timedelta(seconds=offset_s)) == text


def _fail(failure: BaseException) -> Callable[[], object]:
    def command() -> object:
        raise failure

    return command


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ConfigError("x"), 78),
        (NotFound("x"), 3),
        (QueueFull("skill:x", 1), 4),
        (ServerUnavailable("x"), 69),
        (TaskFailed("id", "x"), 1),
        (TimeoutError("x"), 5),
        (KeyboardInterrupt(), 130),
        (output.OutputClosed(), 141),
        (ValueError("x"), 1),
        (ExceptionGroup("tasks", [ValueError("noise"), ServerUnavailable("x")]), 69),
        (SystemExit(7), 7),
    ],
)
def test_exit_codes(failure: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of failure has its exit code and at most one line, without a traceback."""
    assert exit_code_of(_fail(failure), debug=False) == code
    said = capsys.readouterr().err
    assert said.count("\n") <= 1
    assert "Traceback" not in said


def test_error_line() -> None:
    """An error is told as it is, with its semicolons; further lines are indented; nothing in it commands a terminal."""
    assert error_line("no such thing; look again; and again") == "error: no such thing; look again; and again"
    assert error_line("two are wrong\na = 1\nb = 2") == "error: two are wrong\n  a = 1\n  b = 2"
    assert "\x1b" not in error_line(HOSTILE)


@each_case(
    ("typed", "arranged"),
    [
        ("-o json tasks list", "tasks list -o json"),
        ("tasks -ojson list --limit 3", "tasks list -ojson --limit 3"),
        ("--config=x --debug status", "status --config=x --debug"),
        ("tasks submit x -o json -a -o", "tasks submit x -o json -a -o"),
        ("--help", "--help"),
        ("tasks --help", "tasks --help"),
        ("-o", "-o"),
        ("", ""),
    ],
)
def test_global_options_anywhere(typed: str, arranged: str) -> None:
    """Global options may stand before, between and behind the words of a command."""
    assert globals_after_words(typed.split()) == arranged.split()
