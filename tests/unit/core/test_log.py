"""Logs have one shape whoever writes them, tell no secret, and cannot forge lines or command a terminal."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from pydantic import SecretStr

from orchestrator.core import log
from orchestrator.core.log import Format, add_context_source, bind_context, configure_logging, get_logger
from orchestrator.core.scrubbing import MAX_CHARS, MAX_EVENT_CHARS, MAX_TRACE_CHARS, Scrubber
from tests.helpers.cases import each_case
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CANARY = "canary-91ab"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log, "_repeats", log._Repeats())
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for added in [added for added in root.handlers if added not in handlers]:
        added.close()
    root.handlers[:] = handlers
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# ---------------------------------------------------------------------------------------------------------------- shape


def test_a_context_source_reaches_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are in records of this program, of structlog and of other libraries; bound keys go before them."""
    monkeypatch.setattr(log, "_sources", [])
    ids: dict[str, object] = {"trace_id": "t1"}
    for _ in range(2):
        add_context_source(ids.copy)
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    def write() -> None:
        get_logger("orchestrator.x").info("own")
        structlog.get_logger("agent").info("structured")
        logging.getLogger("library").warning("plain")
        bind_context(trace_id="bound")
        get_logger("orchestrator.x").info("own")

    contextvars.copy_context().run(write)
    assert [line["trace_id"] for line in _lines(stream)] == ["t1", "t1", "t1", "bound"]
    assert len(log._sources) == 1


def test_events_are_json_lines() -> None:
    """One object per line: time, level, logger, event, then the keys."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    get_logger("orchestrator.x").bind(agent="editor").info("task_finished", task="t1", attempt=2)
    (line,) = _lines(stream)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line["timestamp"].endswith("Z")
    assert {**line, "timestamp": ""} == {
        "timestamp": "",
        "level": "info",
        "logger": "orchestrator.x",
        "event": "task_finished",
        "agent": "editor",
        "task": "t1",
        "attempt": 2,
    }


@pytest.mark.parametrize(
    ("format_", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ],
)
def test_the_format_follows_the_stream(format_: Format, stream: io.StringIO, *, is_json: bool) -> None:
    """People at a terminal get lines to read, everything else gets JSON, unless the setting says."""
    configure_logging("info", format_, stream)
    get_logger("x").info("started", agent="editor")
    text = stream.getvalue()
    assert text.startswith("{") == is_json
    assert "started" in text
    assert "editor" in text


def test_levels_below_are_not_written() -> None:
    """The level applies to us and to everybody else, and may be changed."""
    stream = io.StringIO()
    configure_logging("warning", "json", stream)
    log = get_logger("x")
    log.info("no")
    logging.getLogger("other").info("no")
    log.warning("yes")
    log.error("yes")
    configure_logging("debug", "json", stream)
    log.debug("yes")
    assert [line["event"] for line in _lines(stream)] == ["yes"] * 3


def test_a_second_configuration_replaces_the_first() -> None:
    """No line is written twice."""
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", first)
    configure_logging("info", "json", second)
    get_logger("x").info("once")
    assert first.getvalue() == ""
    assert len(_lines(second)) == 1


def test_other_libraries_come_out_the_same() -> None:
    """The standard library's loggers and structlog's own pass the same processors."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("lib").warning("lost %s of %d", "one", 3)
    structlog.get_logger("agent").info("thought", words=5)
    plain, native = _lines(stream)
    assert (plain["logger"], plain["level"], plain["event"]) == ("lib", "warning", "lost one of 3")
    assert (native["logger"], native["level"], native["event"], native["words"]) == ("agent", "info", "thought", 5)


def test_context_is_added_to_everything_inside() -> None:
    """Lines of other libraries tell the task they belong to; an own key wins; outside nothing is left."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    with structlog.contextvars.bound_contextvars(task="t1", agent="a"):
        logging.getLogger("lib").info("inside")
        get_logger("x").info("inside", agent="b")
    get_logger("x").info("outside")
    lib, ours, outside = _lines(stream)
    assert (lib["task"], lib["agent"]) == ("t1", "a")
    assert (ours["task"], ours["agent"]) == ("t1", "b")
    assert "task" not in outside


def test_bound_context_reaches_every_library() -> None:
    """A bound key is in our records, those of the standard library and of structlog; an own key wins."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    def inside() -> None:
        bind_context(worker="w1")
        get_logger("x").info("ours")
        get_logger("x").info("own", worker="w2")
        logging.getLogger("lib").info("plain")
        structlog.get_logger("agent").info("native")

    contextvars.copy_context().run(inside)
    get_logger("x").info("outside")
    assert [line.get("worker") for line in _lines(stream)] == ["w1", "w2", "w1", "w1", None]


def test_exceptions_are_one_entry() -> None:
    """A traceback stays inside its JSON line."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        get_logger("x").exception("failed", task="t1")
    get_logger("x").warning("failed", exc_info=KeyError("given"))
    raised, given = _lines(stream)
    assert raised["exception"].startswith("Traceback")
    assert "test_log.py" in raised["exception"]
    assert raised["exception"].endswith("ValueError: boom")
    assert given["exception"] == "KeyError: 'given'"


def test_nothing_configured_is_readable(caplog: pytest.LogCaptureFixture) -> None:
    """A program that embeds the client gets event and keys as text from its own handlers."""
    get_logger("program.client").bind(agent="a").warning("reply_lost", task="t 1")
    assert caplog.messages == ["reply_lost agent='a' task='t 1'"]


def test_importing_is_light() -> None:
    """Neither structlog nor rich nor pydantic is loaded before something is configured."""
    code = (
        "import sys; from orchestrator.core.log import get_logger; log = get_logger('x'); log.debug('off', a=1); "
        "print(sorted({'structlog', 'rich', 'pydantic', 'msgspec', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_threads_do_not_mix_their_lines() -> None:
    """Lines of many threads come out whole."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    log = get_logger("x")

    def work() -> None:
        for number in range(200):
            log.info("e", number=number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_lines(stream)) == 800


# -------------------------------------------------------------------------------------------------------------- secrets


@each_case("format_", ["json", "console"])
@each_case(
    "values",
    [
        {"password": CANARY},
        {"redis_password": CANARY},
        {"Authorization": f"Bearer {CANARY}"},
        {"api-key": CANARY},
        {"auth_token": CANARY},
        {"token": {"nested": [CANARY]}},
        {"client_secret": 12345678},
        {"url": f"redis://:{CANARY}@localhost:6379/0"},
        {"url": f"rediss://user:{CANARY}@p@localhost"},
        {"text": f"connecting to redis://user:{CANARY}@host/0 failed"},
        {"text": f"Redis(host='x', password='{CANARY}')"},
        {"text": f'{{"api_key": "{CANARY} with blanks"}}'},
        {"text": f"secret={CANARY}&x=1"},
        {"text": f"Authorization: Bearer {CANARY}"},
        {"text": f"sent header Bearer {CANARY}"},
        {"value": SecretStr(CANARY)},
        {"values": [SecretStr(CANARY), {"deep": {"password": CANARY}}]},
        {"values": ({"url": f"redis://:{CANARY}@h"},)},
        {f"redis://:{CANARY}@h": 1},
        {"deep": [[[[[[[[f"redis://:{CANARY}@h"]]]]]]]]},
        {"known": "verbatim-secret"},
        {"known": b"verbatim-secret"},
    ],
)
def test_no_secret_is_written(values: dict[str, Any], format_: Format) -> None:
    """Passwords are masked by key, in URLs, in assignments, wrapped as secrets, and when they were announced."""
    stream = io.StringIO()
    configure_logging("info", format_, stream, secrets=["verbatim-secret"])
    get_logger("x").info("connected", **values)
    text = stream.getvalue()
    assert CANARY not in text
    assert "verbatim" not in text
    assert "12345678" not in text
    assert "***" in text


@pytest.mark.parametrize("format_", ["json", "console"])
def test_no_secret_is_written_by_others(format_: Format) -> None:
    """Events, tracebacks with their chains, stacks and the lines of other libraries are masked as well."""
    stream = io.StringIO()
    configure_logging("info", format_, stream, secrets=["verbatim-secret"])
    url = f"redis://:{CANARY}@localhost"
    hidden = SecretStr(CANARY)
    try:
        try:
            raise ValueError(f"cannot reach {url}")
        except ValueError as first:
            raise KeyError(f"password={hidden.get_secret_value()}") from first
    except KeyError:
        get_logger("x").exception(f"failed {url}")
        logging.getLogger("lib").exception("failed %s", url, stack_info=True)
    structlog.get_logger("agent").info("tried", token=hidden.get_secret_value(), hidden=hidden)
    logging.getLogger("lib").info({"password": hidden.get_secret_value()})
    text = stream.getvalue()
    assert "Traceback" in text
    assert CANARY not in text


def test_ordinary_values_stay() -> None:
    """Counts of tokens, addresses without a password and flags are no secrets."""
    values = {"tokens": 512, "url": "redis://localhost:6379/0", "has_secret": False, "at": "10:30", "mail": "a@b.c"}
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    get_logger("x").info("done", **values)
    (line,) = _lines(stream)
    assert {name: line[name] for name in values} == values


@each_case(
    "text",
    [
        "a-", "a:", "://a:", "://:@", "token", "token=", 'token="', "token='", "password ", "Bearer ", "basic\t",
        "api_", "token\t =", "s\u017f", "://" + "x" * 5000, "token=" + "x" * 5000, "\ud800", "a\ud800", "hunter", "\n",
        "http://",
    ],
)  # fmt: skip
def test_scrubbing_takes_linear_time(text: str) -> None:
    """No text of 256 KiB holds the interpreter for long: not as one value, and not when all of it is looked at."""
    whole = (text * (256 * 1024 // len(text) + 1))[: 256 * 1024]
    scrubber = Scrubber(["hunter22", "p@ss/word"], keep_lines=True)
    assert min(_duration_s(lambda: scrubber({"value": whole})) for _ in range(5)) < 0.01
    parts = [whole[start : start + 8192] for start in range(0, len(whole), 8192)]
    assert min(_duration_s(lambda: scrubber({"exception": whole, "parts": parts})) for _ in range(3)) < 0.5


def test_scrubbing_looks_at_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a value, and of all values of an event, so that no size of a text makes a line dearer."""
    looked_at = 0
    mask = Scrubber._mask

    def counted(scrubber: Scrubber, text: str) -> str:
        nonlocal looked_at
        looked_at += len(text)
        return mask(scrubber, text)

    monkeypatch.setattr(Scrubber, "_mask", counted)
    scrubber = Scrubber(["hunter22"], keep_lines=True)
    scrubber({"value": "a-" * 131_072})
    assert looked_at <= MAX_CHARS + 4096 + len("value")
    looked_at = 0
    scrubber({f"value{n}": "x" * 2**20 for n in range(100)} | {"exception": "x" * 2**20})
    assert looked_at <= MAX_EVENT_CHARS + 102 * 2 * 4100


def _duration_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


@each_case(
    "form", ["p@ss/wörd", "p%40ss%2Fw%C3%B6rd", "p%40ss/w%C3%B6rd", "x'p@ss/wörd'y", "redis://u:p%40ss%2Fw%C3%B6rd@h/0"]
)
def test_every_form_of_a_secret_is_masked(form: str) -> None:
    """A password is found as it is and percent-encoded, whichever of the two was announced."""
    for announced in ("p@ss/wörd", "p%40ss%2Fw%C3%B6rd"):
        shown = Scrubber([announced], keep_lines=False)({"text": f"a {form} b"})["text"]
        assert "ss/w" not in shown
        assert "ss%2Fw" not in shown
        assert shown.startswith("a ")
        assert shown.endswith(" b")


@each_case("secret", ["hunter22", "password=abcdefgh", "redis://u:abcdefgh@host", "Bearer abcdefgh"])
def test_no_part_of_a_secret_stays_at_a_cut(secret: str) -> None:
    """A cut through a secret leaves no part of it, at the end of a value and in the middle of a traceback."""
    scrubber = Scrubber(["hunter22"], keep_lines=True)
    for limit, name in ((MAX_CHARS, "value"), (MAX_TRACE_CHARS // 2, "exception")):
        for shift in range(len(secret) + 1):
            text = "x" * (limit - shift - 1) + " " + secret + " " + "y" * (limit - 12)
            shown = scrubber({name: text})[name]
            assert "hunt" not in shown
            assert "abc" not in shown
            assert "efgh" not in shown
            assert len(shown) < 2 * limit + 200


def test_long_values_are_cut() -> None:
    """Texts, lists and mappings have a limit, and so does the whole event; a cut is marked."""
    scrubber = Scrubber([], keep_lines=True)
    clean = scrubber(
        {
            "text": "x" * 9000,
            "many": range(3),
            "list": list(range(1000)),
            "map": dict.fromkeys(range(150)),
            "raw": b"y" * 10**7,
        }
    )
    assert clean["text"].endswith("... (808 characters cut) ...")
    assert clean["list"][100:] == ["... 900 more"]
    assert clean["map"]["..."] == "50 more"
    assert len(clean["raw"]) < 9000
    assert len(json.dumps(scrubber({"deep": [["x" * 8000] * 100] * 100}))) < 2 * MAX_EVENT_CHARS + 500_000
    trace = scrubber({"exception": "first" + "x" * 100_000 + "last"})["exception"]
    assert (trace[:5], trace[-4:]) == ("first", "last")


# ------------------------------------------------------------------------------------------------- repeated failures


def test_a_repeated_event_is_sampled() -> None:
    """Of thousands of equal failures a second has 100 lines, and one that counts the others; other events stay."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    log, began_s = get_logger("orchestrator.test"), time.monotonic()
    for _ in range(3000):
        log.warning("log_lines_dropped", count=1)
    log.warning("log_record_failed", error="x", source="y")
    seconds = time.monotonic() - began_s
    configure_logging("info", "json", io.StringIO())
    lines = _lines(stream)
    written = [line for line in lines if line["event"] == "log_lines_dropped"]
    left_out = [line for line in lines if line["event"] == "log_lines_left_out"]
    assert len(written) <= 100 * (int(seconds) + 2)
    assert len(written) + sum(line["events"]["log_lines_dropped"] for line in left_out) == 3000
    assert "log_record_failed" in {line["event"] for line in lines}


async def test_what_was_left_out_is_told_soon() -> None:
    """Also when nothing else is logged, where an event loop runs."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    for _ in range(101):
        get_logger("orchestrator.test").warning("log_lines_dropped", count=1)
    await wait_for(lambda: "log_lines_left_out" in stream.getvalue(), "the count")


def test_lines_of_handlers_are_all_written() -> None:
    """A handler decides itself how much it logs."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    for _ in range(300):
        get_logger("agent").warning("slow")
    assert len(_lines(stream)) == 300


# ------------------------------------------------------------------------------------------------------------ odd bytes

NASTY = "a\x1b[2J\x9b31m\x07\x7f\u202eevil\u2028\ud800\x00z"


@each_case("format_", ["json", "console"])
@each_case("where", ["event", "value", "key", "nested", "exception", "foreign"])
def test_control_characters_are_escaped(format_: Format, where: str) -> None:
    """No text from outside can move the cursor, turn the reading direction or break the encoder."""
    stream = io.StringIO()
    # Without pytest's own handlers: its reports cannot carry half a character between processes.
    logging.getLogger().handlers.clear()
    configure_logging("info", format_, stream)
    log = get_logger("x")
    match where:
        case "event":
            log.info(NASTY)
        case "value":
            log.info("e", value=NASTY)
        case "key":
            log.info("e", **{NASTY: 1})
        case "nested":
            log.info("e", value=[{"k": NASTY}])
        case "exception":
            log.warning("e", exc_info=ValueError(NASTY))
        case _:
            logging.getLogger("lib").info(NASTY)
    text = stream.getvalue()
    text.encode()
    assert {character for character in text if not character.isprintable()} <= {"\n"}
    assert "evil" in text


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_value_cannot_forge_a_line(format_: Format) -> None:
    """A line break in a value stays inside its line."""
    stream = io.StringIO()
    configure_logging("info", format_, stream)
    get_logger("x").info("e\nforged", value="a\r\nforged")
    logging.getLogger("lib").info("e\nforged")
    assert len(stream.getvalue().splitlines()) == 2


def test_odd_values_are_shown_somehow() -> None:
    """What JSON does not know, and what cannot even be printed, does not lose the line."""

    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    circle: list[Any] = []
    circle.append(circle)
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    get_logger("x").info(
        "e", rude=Rude(), circle=circle, number=2**70, nan=float("nan"), raw=b"\xff", items={1}, mapping={1: (2, 3)}
    )
    (line,) = _lines(stream)
    assert line["rude"] == "<unprintable Rude: RuntimeError>"
    assert line["items"] == [1]
    assert line["mapping"] == {"1": [2, 3]}
    assert line["event"] == "e"
