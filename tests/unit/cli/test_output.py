"""Tables, JSON and errors say what there is, and nothing in them commands a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.failures import exit_code_of, say_error
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


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal no line is wider than it; ids stay whole, and the longest cells are cut."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    id_ = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
    text = output.table([[id_, "ready", "a-skill-with-a-long-name" * 2, "r" * 200]], ["id", "state", "skill", "reason"])
    assert max(map(len, text.splitlines())) == columns
    assert id_ in text
    assert "ready" in text
    assert text.count("…") == 2


def test_an_id_is_cut_behind_what_tells_it_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a table of many columns titles are cut first, so that the ids of one client differ and can be typed."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    ids = [f"0190f6e5-4d2a-7c3b-9f{n}0-2b6c8d4e1a55" for n in range(5)]
    columns = ["id", "state", "skill", "priority", "session", "submitted_at", "depth", "parent"]
    rows = [[id_, "succeeded", "investigate", "normal", "ada", "17 s ago", "1", ids[0]] for id_ in ids]
    lines = output.table(rows, columns).splitlines()
    assert max(map(len, lines)) == 80
    assert [line.split()[0] for line in lines[1:]] == [f"{id_[:23]}…" for id_ in ids]


def test_a_table_for_a_pipe_is_whole() -> None:
    """Off a terminal no cell is cut."""
    assert "r" * 500 in output.table([["1", "r" * 500]], ["id", "reason"])


def test_priorities_have_names() -> None:
    """A priority is told by its name, or by its number if it has none."""
    assert [output.priority(level) for level in (0, 1, 2, 3, 7)] == ["critical", "high", "normal", "low", "7"]


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


def test_error_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """An error is told as it is, with its semicolons; further lines are indented; nothing in it commands a terminal."""
    say_error("no such thing; look again; and again")
    say_error("two are wrong\na = 1\nb = 2")
    say_error(HOSTILE)
    assert capsys.readouterr().err.splitlines() == [
        "error: no such thing; look again; and again",
        "error: two are wrong", "  a = 1", "  b = 2",
        r"error: red \x1b[31m, \x9b2J, \u202egnp.exe, line", r"  break, \x00",
    ]  # fmt: skip


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
