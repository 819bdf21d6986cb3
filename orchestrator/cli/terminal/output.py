"""How data reaches standard output: tables for people, JSON for programs. Everything else goes to standard error.

What other people wrote (reasons, tags, tracebacks) cannot command the terminal: control characters are escaped.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

from orchestrator.core.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.cli.terminal.options import Form

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNSAFE_IN_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOURS: Final = {
    "succeeded": "32",
    "running": "36",
    "cancelling": "33",
    "awaiting_input": "35",
    "dead": "31",
    "cancelled": "33",
    "expired": "33",
}


class OutputClosed(Exception):
    """Whoever read our output has gone away (`orc tasks list | head -1`)."""


class OutputFailed(OrchestratorError):
    """Our output could not be written, as on a full disk."""


# -------------------------------------------------------------------------------------------------------------- writing


def write(text: str) -> None:
    """Write to standard output, at once.

    Raises:
        OutputClosed: the reader has gone.
        OutputFailed: it could not be written.
    """
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output as they are, at once; see `write`."""
    out = sys.stdout
    if out is None:  # closed by the caller: `orc … >&-`
        return
    try:
        out.flush()
        out.buffer.write(data)
        out.buffer.flush()
    except OSError as failed:
        _drop_stdout()
        if failed.errno in {errno.EPIPE, errno.ECONNRESET}:
            raise OutputClosed from None
        raise OutputFailed(f"standard output cannot be written: {failed.strerror}") from None


def _drop_stdout() -> None:
    # Otherwise the interpreter tries to flush it once more while it shuts down, and complains.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def say(text: str) -> None:
    """Tell the person at the terminal something that is not data."""
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def hint(text: str) -> None:
    """The same, but only when somebody is looking."""
    if is_terminal(sys.stderr):
        say(text)


# ---------------------------------------------------------------------------------------------------------------- forms


def show_list(
    form: Form, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, key: str, empty: str = ""
) -> None:
    """Print a list.

    Args:
        form: what `-o` says.
        rows: JSON-ready values by name.
        columns: the names that a table shows, in order.
        key: the name whose value `-o id` prints.
        empty: said on standard error when a table would have no rows.
    """
    match form:
        case "json":
            write(json_text({"items": list(rows)}, indent=True))
        case "jsonl":
            write("".join(json_text(row) for row in rows))
        case "id":
            write("".join(f"{clean(str(row[key]))}\n" for row in rows))
        case "table":
            if not rows and empty:
                say(empty)
            elif rows:
                write(table([[_cell(row.get(name)) for name in columns] for row in rows], columns))


def show_record(form: Form, record: Mapping[str, Any], *, key: str, skip: Iterable[str] = ()) -> None:
    """Print one thing with all that is known of it; `skip`: names that a table leaves out when they are empty."""
    match form:
        case "json":
            write(json_text(record, indent=True))
        case "jsonl":
            write(json_text(record))
        case "id":
            write(f"{clean(str(record[key]))}\n")
        case "table":
            hidden = {name for name in skip if record.get(name) in (None, "", (), [], {})}
            shown = {name: value for name, value in record.items() if name not in hidden}
            width = max(len(name) for name in shown)
            write("".join(_field(name, value, width) for name, value in shown.items()))


def json_text(value: Any, *, indent: bool = False) -> str:
    """Encode as one JSON document and a line end; user data in it (`msgspec.Raw`) keeps its digits."""
    import msgspec

    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data, indent=2) if indent else data).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def raw_json(data: bytes) -> Any:
    """Mark bytes that are JSON already."""
    import msgspec

    return msgspec.Raw(data)


def user_json(value: Any) -> Any:
    """User data as JSON of its own: whole numbers of any length keep their digits."""
    from orchestrator.core.payload import encode_json

    return raw_json(encode_json("output", value, max_bytes=2**31, max_depth=1000))


def result_line(data: bytes) -> bytes:
    """The JSON of a result as it is; on a terminal without characters that could command it."""
    if is_terminal(sys.stdout):
        data = _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()
    return data + b"\n"


def table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Lay out columns; the last one may be as wide as it likes."""
    titles = [head.replace("_", " ").upper() for head in heads]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [_line(titles, widths, dress=lambda text: paint(text, "1"))]
    lines += [_line(row, widths, dress=state) for row in rows]
    return "".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], *, dress: Any) -> str:
    last = len(cells) - 1
    return (
        "  ".join(dress(cell if i == last else cell.ljust(widths[i])) for i, cell in enumerate(cells)).rstrip() + "\n"
    )


def paint(text: str, code: str) -> str:
    """Colour a text where colours are wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if code and colours(sys.stdout) else text


def state(text: str) -> str:
    """Colour the name of a state, or of anything else not at all."""
    return paint(text, _COLOURS.get(text.strip(), ""))


def colours(stream: IO[str] | None) -> bool:
    """Whether this stream is a terminal that may be coloured."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether somebody is looking."""
    return stream is not None and stream.isatty()


# --------------------------------------------------------------------------------------------------------------- values


def clean(text: str) -> str:
    """Escape what could forge lines or command a terminal."""
    return _UNSAFE.sub(_escaped, text)


def clean_lines(text: str) -> str:
    """The same for a text of many lines."""
    return _UNSAFE_IN_LINES.sub(_escaped, text)


def ago(moment: datetime | None) -> str:
    """How long ago something was, in the largest unit that fits; `in 5s` for the future."""
    if moment is None:
        return "-"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    # Clocks of two machines differ a little: a second ahead is now.
    return f"in {span(-seconds)}" if seconds < -1 else f"{span(max(0.0, seconds))} ago"


def span(seconds: float) -> str:
    """A duration in its largest unit: `3s`, `5m`, `2h`, `4d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _field(name: str, value: Any, width: int) -> str:
    label = paint(name.replace("_", " ").ljust(width), "1")
    if isinstance(value, tuple | list) and any("\n" in str(item) for item in value):
        blocks = [clean_lines(str(item)).rstrip().replace("\n", "\n     ") for item in value]
        return f"{label.rstrip()}\n" + "".join(f"  {number}. {block}\n" for number, block in enumerate(blocks, 1))
    cell = _cell(value)
    return f"{label}  {state(cell)}\n"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return ago(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(str(name))}={_cell(inner)}" for name, inner in value.items()) or "-"
    if isinstance(value, tuple | list):
        return ", ".join(_cell(item) for item in value) or "-"
    if type(value).__name__ == "Raw":
        return clean(bytes(value).decode())
    return clean(str(value))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode("ascii")
