"""Prints data on standard output, as tables or JSON, and everything else on standard error.

Control characters are escaped, because user data such as reasons and tracebacks must not control the terminal.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

from orchestrator.core.durations import in_words
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.escaping import UNSAFE_IN_LINES, escape, escape_json

if TYPE_CHECKING:
    from orchestrator.cli.terminal.options import Form

_COLOURS: Final = {
    "succeeded": "32",
    "running": "36",
    "cancelling": "33",
    "awaiting_input": "35",
    "joining": "35",
    "awaiting_tasks": "35",
    "dead": "31",
    "cancelled": "33",
    "expired": "33",
}

_BETWEEN: Final = "  "
CELL_MIN: Final = 6
"""Characters that a cell keeps when a table is cut to the width of the terminal."""
ID_CHARS: Final = 36
_IDS: Final = frozenset({"ID", "EXAMPLE", "NEWEST", "TASK"})
"""Columns of ids."""
_KEYS: Final = frozenset({"ID", "TASK"})
"""Columns of the ids of their rows."""
ID_BEGUN: Final = 24
"""Characters that such an id keeps, with the mark of the cut; the others are the same in all ids of a client."""


class OutputClosed(Exception):
    """The reader of standard output has closed it (`orc tasks list | head -1`)."""


class OutputFailed(OrchestratorError):
    """Standard output could not be written, as on a full disk."""


# -------------------------------------------------------------------------------------------------------------- writing


def write(text: str) -> None:
    """Write to standard output and flush it.

    Raises:
        OutputClosed: the reader has closed it.
        OutputFailed: the write failed.
    """
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output and flush it; see `write`."""
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
        raise OutputFailed(f"cannot write standard output: {failed.strerror}") from None


def _drop_stdout() -> None:
    # Otherwise the interpreter flushes it again at exit and prints an error.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def progress(text: str) -> None:
    """Overwrite the progress line on standard error; only on a terminal."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def say(*lines: str) -> None:
    """Print a message on standard error. No text in it starts a line of its own."""
    if sys.stderr is not None:
        sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
        sys.stderr.flush()


def hint(text: str) -> None:
    """Print a message on standard error if it is a terminal."""
    if is_terminal(sys.stderr):
        say(text)


def prompt(text: str) -> None:
    """Print a question on standard error; the answer stands on the same line."""
    sys.stderr.write(f"{clean(text)} ")
    sys.stderr.flush()


def say_rest(shown: int, total: int) -> None:
    """Print a message on standard error if a list is shorter than what there is."""
    if shown < total:
        say(f"these are {shown} of {total}; raise --limit for more")


# ---------------------------------------------------------------------------------------------------------------- forms


def show_list(
    form: Form, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, key: str, empty: str = ""
) -> None:
    """Print a list.

    Args:
        form: the form of `-o`.
        rows: values by name.
        columns: names of the columns of a table.
        key: name of the value that `-o id` prints.
        empty: message on standard error in place of an empty table.
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
    """Print one record; `skip`: names that a table leaves out when they are empty."""
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
    """Encode as one line or one indented document of JSON; raw JSON in it is kept as it is."""
    import msgspec

    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data, indent=2) if indent else data).decode()
    return escape_json(text) + "\n"


def raw_json(data: bytes) -> Any:
    """Wrap bytes that are JSON already."""
    import msgspec

    return msgspec.Raw(data)


def user_json(value: Any) -> Any:
    """Encode user data as raw JSON, so that integers of any length keep their digits."""
    from orchestrator.core.payload import encode_json

    return raw_json(encode_json("output", value, max_bytes=2**31, max_depth=1000))


def result_line(data: bytes) -> bytes:
    """Return the JSON of a result as it is; on a terminal, control characters are escaped."""
    if is_terminal(sys.stdout):
        data = escape_json(data.decode()).encode()
    return data + b"\n"


def table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Format a table; on a terminal its longest cells are cut so that each line fits. The last column is not padded."""
    titles = [head.replace("_", " ").upper() for head in heads]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    if is_terminal(sys.stdout):
        widths = fitting(widths, titles, shutil.get_terminal_size().columns)
    lines = [_line(titles, widths, dress=lambda text: paint(text, "1"))]
    lines += [_line(row, widths, dress=state) for row in rows]
    return "".join(lines)


def fitting(widths: Sequence[int], titles: Sequence[str], columns: int) -> list[int]:
    """Return narrower columns: the widest one gives way first, an id last, because it is copied from the table."""
    fitting = list(widths)
    begun = [ID_BEGUN if title in _KEYS else CELL_MIN for title in titles]
    whole_ids = [max(len(title), ID_CHARS if title in _IDS else CELL_MIN) for title in titles]
    whole_titles = [max(len(title), each) for title, each in zip(titles, begun, strict=True)]
    for may_cut in (whole_ids, whole_titles, begun, [CELL_MIN] * len(titles)):
        while (too_wide := sum(fitting) + len(_BETWEEN) * (len(fitting) - 1) - columns) > 0:
            room = [max(0, width - each) for width, each in zip(fitting, may_cut, strict=True)]
            widest = max(range(len(fitting)), key=lambda at: (room[at] > 0, fitting[at]))
            if not room[widest]:
                break
            others = [width for at, width in enumerate(fitting) if at != widest and room[at]]
            step = max(1, fitting[widest] - max(others, default=0))
            fitting[widest] -= min(step, too_wide, room[widest])
    return fitting


def _line(cells: Sequence[str], widths: Sequence[int], *, dress: Any) -> str:
    last = len(cells) - 1
    cut = [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(cells, widths, strict=True)]
    dressed = [dress(cell if at == last else cell.ljust(widths[at])) for at, cell in enumerate(cut)]
    return _BETWEEN.join(dressed).rstrip() + "\n"


def paint(text: str, code: str) -> str:
    """Colour a text if standard output takes colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if code and colours(sys.stdout) else text


def state(text: str) -> str:
    """Colour the name of a task state; other text is unchanged."""
    return paint(text, _COLOURS.get(text.strip(), ""))


def colours(stream: IO[str] | None) -> bool:
    """Return whether the stream is a terminal that takes colours."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether the stream is a terminal."""
    return stream is not None and stream.isatty()


# --------------------------------------------------------------------------------------------------------------- values


def clean(text: str) -> str:
    """Escape control characters and line ends."""
    return escape(text)


def clean_lines(text: str) -> str:
    """Escape control characters, but keep line ends and tabs."""
    return escape(text, UNSAFE_IN_LINES)


def ago(moment: datetime | None) -> str:
    """Format a time relative to now in its largest unit: `5 s ago`, `in 2 h`."""
    if moment is None:
        return "-"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    # The clock of the server may be up to a second ahead.
    return f"in {in_words(-seconds)}" if seconds < -1 else f"{in_words(seconds)} ago"


def clock(moment: datetime) -> str:
    """Format the time of an event that is printed as it happens, in the zone of this machine."""
    return moment.astimezone().strftime("%H:%M:%S")


def priority(level: int) -> str:
    """Return the name of a priority, or its number if it has none."""
    from orchestrator.tasks.options import PRIORITIES

    return next((name for name, each in PRIORITIES.items() if each == level), str(level))


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
