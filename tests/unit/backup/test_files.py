"""Backup files: what is written is read again, and no damage passes."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from orchestrator.backup import files
from orchestrator.backup.checks import check_row
from orchestrator.backup.contents import check_file
from orchestrator.backup.files import BackupFile, BackupReader
from orchestrator.backup.rows import (
    MAGIC,
    VERSION,
    ChunkEnd,
    CommandsRow,
    Header,
    KeyRow,
    OutputRow,
    SavedTask,
    encode_row,
    to_bytes,
    to_text,
)
from orchestrator.core.errors import BackupFailed, DamagedBackup, InvalidInput
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.model import Envelope, encode_envelope
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.backup.rows import DataRow

HEADER = Header(MAGIC, VERSION, "1.0", "8.2", "a:b:c", "p", 3, 1000, shared=True)
ENV = to_text(encode_envelope(Envelope("sum", b"{}")))


def task(**fields: str) -> SavedTask:
    """A waiting task, with these fields of its record."""
    return SavedTask(new_task_id(), 1000, {"env": ENV, "gen": "5", "state": "ready"} | fields)


def write(path: Path, rows: Sequence[Any], *, compress: bool = True) -> Path:
    """Write a file."""
    with BackupFile(path, compress=compress) as file:
        file.add([HEADER, *rows])
        file.finish({"tasks": sum(isinstance(row, SavedTask) for row in rows)}, ended_ms=2000, skipped=[])
    return path


def read(path: Path) -> list[DataRow]:
    """Check a file and read its rows."""
    check_file(BackupReader(path))
    return list(BackupReader(path).rows())


def some_rows(seed: int, count: int = 40) -> list[DataRow]:
    """Rows of all kinds with any bytes: binary, Unicode, empty, large."""
    chosen = random.Random(seed)
    rows: list[DataRow] = [CommandsRow({"seq": "5"}, {})]
    for _ in range(count):
        text = to_text(chosen.randbytes(chosen.choice([0, 1, 5, 300, 20_000])))
        words = to_text('\N{SNOWMAN}\U0001f600\n"\\'.encode())
        rows += [
            task(result=text, reason=words, **{f"once:{words}": text}),
            OutputRow(new_task_id(), 5, [["5-1", "d", text, "k", "output"]]),
            KeyRow("session:s%20x", "ws:doc", "hash", [words, text], left_ms=7),
            KeyRow("", "limit:x", "zset", ["1.5", text, "inf", words], until_ms=7),
        ]
    return rows


@each_case("compress", [True, False])
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compress: bool) -> None:
    """Every row comes back, over many chunks, for many random rows; any program can unpack the file."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 5000)
    for seed in range(2):
        path = tmp_path / f"{seed}-{compress}"
        rows = some_rows(seed)
        assert read(write(path, rows, compress=compress)) == rows
        assert path.stat().st_mode & 0o777 == 0o600
    data = (tmp_path / f"1-{compress}").read_bytes()
    text = gzip.decompress(data) if compress else data
    assert text.startswith(b'{"kind":"header","magic":"redis-orchestrator backup"')
    assert text.splitlines()[-2].startswith(b'{"kind":"end"')


@each_case("compress", [True, False])
def test_every_flipped_byte_is_found(tmp_path: Path, *, compress: bool) -> None:
    """A file with a flipped bit anywhere is refused, or has the same content; one that is cut anywhere is refused."""
    rows: list[DataRow] = [task(reason="why"), KeyRow("", "limits", "hash", ["a", "1 5"])]
    path = write(tmp_path / f"good{compress}", rows, compress=compress)
    good = path.read_bytes()
    damaged = tmp_path / f"damaged{compress}"
    harmless = 0
    for at in range(len(good)):
        damaged.write_bytes(good[:at] + bytes([good[at] ^ 1 << (at % 8)]) + good[at + 1 :])
        try:
            assert read(damaged) == rows
            harmless += 1
        except DamagedBackup:
            pass
    # Of a gzip member: the byte that names the system, and bits that fill the last byte of the last member.
    assert harmless <= (4 if compress else 0)
    for size in range(0, len(good), 17):
        damaged.write_bytes(good[:size])
        with pytest.raises(DamagedBackup):
            read(damaged)


def test_the_place_of_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the chunk, the byte and the row."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 500)
    path = write(tmp_path / "a", [task() for _ in range(9)], compress=False)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"gen":"5"', b'"gen":"6"', 1))
    with pytest.raises(DamagedBackup, match=r"the checksum of a chunk is wrong, in chunk 1 \(from byte 0\)"):
        read(path)
    write(tmp_path / "b", [task(), task(gen="x")], compress=False)
    with pytest.raises(DamagedBackup, match=r"the field gen of a task is wrong, in chunk 1 \(from byte 0\), row 3"):
        read(tmp_path / "b")


def test_chunks_that_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are valid each are refused in another order, twice, or of another file."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 500)
    path = write(tmp_path / "a", [task() for _ in range(9)])
    data = path.read_bytes()
    begins = [at for at in range(len(data)) if data.startswith(b"\x1f\x8b\x08\x00\x00\x00\x00\x00", at)]
    members = [data[begin:end] for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)]
    other = write(tmp_path / "b", [task() for _ in range(9)]).read_bytes()
    for wrong in (
        [members[0], members[2], members[1], *members[3:]],
        [members[0], *members],
        members[:-1],
        [*members, members[-1]],
        members[1:],
        [*members[:-1], other[other.rindex(b"\x1f\x8b\x08\x00\x00\x00\x00\x00") :]],
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(DamagedBackup):
            read(path)


@each_case(
    ("what", "match"),
    [
        (b"", "it is empty or not a backup"),
        (b"hello\n", "it is not a backup"),
        (b'{"kind":"header",}\n{"kind":"chunk"}\n', "a row cannot be read"),
        (gzip.compress(b"hello\n", mtime=5), "it is not a backup"),
        (gzip.compress(b"hello\n", mtime=0), "not a backup|a row cannot be read"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03hello", "it cannot be unpacked|incomplete"),
    ],
)
def test_other_files(tmp_path: Path, what: bytes, match: str) -> None:
    """A file of another program is refused."""
    path = tmp_path / "other"
    path.write_bytes(what)
    with pytest.raises(DamagedBackup, match=match):
        read(path)


def test_versions(tmp_path: Path) -> None:
    """A file of a newer version names the version that is needed; so does one of a pool with a newer format."""
    path = tmp_path / "new"
    with BackupFile(path, compress=True) as file:
        file.add([msgspec.structs.replace(HEADER, version=2, program="9.0")])
        file.finish({}, ended_ms=0, skipped=[])
    with pytest.raises(DamagedBackup, match=r"has version 2.*newer version of this program \(it was written by 9.0\)"):
        read(path)
    path = tmp_path / "floor"
    with BackupFile(path, compress=True) as file:
        file.add([msgspec.structs.replace(HEADER, floor=99)])
        file.finish({}, ended_ms=0, skipped=[])
    with pytest.raises(DamagedBackup, match="format 99"):
        read(path)


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that unpacks to more than any chunk has is refused before it fills the memory."""
    monkeypatch.setattr(files, "MAX_CHUNK_BYTES", 1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    path = tmp_path / "bomb"
    path.write_bytes(packer.compress(bytes(50 << 20)) + packer.flush())
    assert path.stat().st_size < 100_000
    with pytest.raises(DamagedBackup, match="larger than 1048576 bytes"):
        read(path)


ID = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
HOSTILE: list[DataRow] = [
    *[
        KeyRow("", suffix, type_, values)
        for suffix, type_, values in (
            ("desired", "hash", ["stop:all", "x"]),
            ("leader", "string", ["me"]),
            ("format", "string", ["1"]),
            ("task:x", "hash", ["a", "b"]),
            (f"task:{ID}", "hash", ["state", "ready"]),
            ("queue:skill:x", "zset", ["1", ID]),
            ("limits", "string", ["x"]),
            ("limits", "hash", ["x", "1"]),
            ("limits", "hash", ["x", "1 2; DEL"]),
            ("limits", "hash", ["x"]),
            ("limits", "hash", []),
            ("limits", "hash", ["\u0100", "1 5"]),
            ("limit:x y", "zset", ["1", "a"]),
            ("limit:x", "zset", ["nan", "a"]),
            ("limit:x", "zset", ["1", "a", "2"]),
            ("control", "stream", ["x", "2", "c", "x"]),
            ("control", "stream", ["2-1", "2", "c", "x", "1-1", "2", "c", "x"]),
            ("control", "stream", ["0-0", "2", "c", "x"]),
            ("control", "stream", ["1-1", "4", "c", "x"]),
            ("control", "stream", ["1-1", "x", "c", "x"]),
            ("schedule:n", "hash", ["next", "5", "plan", "{}"]),
            ("schedule:n", "hash", ["next", "soon", "plan", "{}"]),
            ("no such key", "string", ["x"]),
        )
    ],
    *[
        KeyRow(scope, suffix, type_, values)
        for scope, suffix, type_, values in (
            ("session:s}:x{", "ws:doc", "hash", ["a", "b"]),
            ("session:a b", "ws:doc", "hash", ["a", "b"]),
            ("pool:q", "limits", "hash", ["a", "1 5"]),
            ("other:s", "ws:doc", "hash", ["a", "b"]),
            ("locks:q", "fence", "string", ["1"]),
            ("session:s", "lock:n", "string", ["mine"]),
            ("session:s", "exec", "string", ["mine"]),
            ("session:s", "meta", "hash", ["rev", "x"]),
            ("session:s", "meta", "hash", ["places", "x"]),
            ("session:s", "fence", "string", ["x"]),
            ("session:s", "ws:doc", "list", ["x"]),
            ("session:s", "control", "stream", ["1-1", "2", "c", "x"]),
        )
    ],
    *[
        SavedTask(id_, 5, fields, **more)
        for id_, fields, more in list[tuple[str, dict[str, str], dict[str, Any]]](
            [
                ("x", {"env": ENV, "gen": "5", "state": "ready"}, {}),
                ("}:{x", {"env": ENV, "gen": "5", "state": "ready"}, {}),
                *[
                    (ID, {"env": ENV, "gen": "5", "state": "ready"} | changed, {})
                    for changed in (
                        {"state": "running"},
                        {"state": "assigned"},
                        {"state": "assigned", "at": "ed 1 5"},
                        {"state": "assigned", "at": "e d 1-1 5"},
                        {"state": "scheduled"},
                        {"state": "dead"},
                        {"gen": ""},
                        {"gen": "-5"},
                        {"gen": "5" * 20},
                        {"env": ""},
                        {"env": "\x91\x01"},
                        {"env": to_text(encode_envelope(Envelope("a b", b"{}")))},
                        {"queue": "x"},
                        {"queue": "skill:a b"},
                        {"queue": "pool:x"},
                        {"lane": "}"},
                        {"idem": "a b"},
                        {"session": "{"},
                        {"skill": " "},
                        {"fails": "x"},
                        {"by": "1e9"},
                        {"reason": "\u0100"},
                        {"x" * 600: "1"},
                    )
                ],
                (ID, {"env": ENV, "gen": "5", "state": "ready"}, {"score": "x"}),
                (ID, {"env": ENV, "gen": "5", "state": "ready"}, {"score": "inf"}),
                (ID, {"env": ENV, "gen": "5", "state": "ready"}, {"turn": "1;"}),
                (ID, {"env": ENV, "gen": "5", "state": "ready"}, {"children": ["x"]}),
                (ID, {"env": ENV, "gen": "5", "state": "ready"}, {"digest": "\u0100"}),
                (ID, {"gen": "5", "state": "ready"}, {}),
            ]
        )
    ],
    SavedTask(ID, -1, {"env": ENV, "gen": "5", "state": "ready"}),
    OutputRow("x", 5, [["1-1", "a", "b"]]),
    OutputRow(ID, 5, [["x", "a", "b"]]),
    OutputRow(ID, 5, [["1-1", "a"]]),
    OutputRow(ID, 5, [["1-1"]]),
    OutputRow(ID, 5, [["1-2", "a", "b"], ["1-1", "a", "b"]]),
    OutputRow(ID, 10**19, [["1-1", "a", "b"]]),
    SavedTask(ID, 10**19, {"env": ENV, "gen": "5", "state": "ready"}),
    KeyRow("", "limits", "hash", ["x", "1 5"], left_ms=10**19),
    KeyRow("", "limits", "hash", ["x", "1 5"], until_ms=10**19),
    OutputRow(ID, 5, [["1-1", "a", "\u0100"]]),
    CommandsRow({"\u0100": "x"}, {}),
]


def test_hostile_rows(tmp_path: Path) -> None:
    """A well-formed file with what this program never stores is refused as a whole, with the row."""
    for number, row in enumerate(HOSTILE):
        try:
            check_row(row, pool="p")
        except InvalidInput:
            pass
        else:
            pytest.fail(f"accepted: {row}")
        if number % 7 == 0:
            with pytest.raises(DamagedBackup, match="row 2"):
                read(write(tmp_path / str(number), [row]))
    for row in some_rows(7, 3):
        check_row(row, pool="p")


def test_more_than_the_rows(tmp_path: Path) -> None:
    """Unknown kinds of rows, unknown fields and values of another type are refused."""
    for line in (
        b'{"kind":"script","text":"return 1"}',
        b'{"kind":"output","id":5,"left_ms":5,"entries":[]}',
        b'{"kind":"output","id":"x","left_ms":5,"entries":[],"eval":"x"}',
        b"[]",
        b"[" * 5000,
        b'{"kind":"header","magic":"x","version":1,"program":"","server":"","prefix":"","pool":"","floor":1,"begun_ms":1,"shared":true}',
    ):
        path = tmp_path / "more"
        path.unlink(missing_ok=True)
        with BackupFile(path, compress=False) as file:
            file.add([HEADER])
            file._lines.append(line + b"\n")
            file.finish({}, ended_ms=0, skipped=[])
        with pytest.raises(DamagedBackup):
            read(path)


def test_bytes() -> None:
    """Every byte has a character, and no other character is a byte."""
    data = bytes(range(256))
    assert to_bytes(to_text(data)) == data
    assert len(to_text(data)) == 256
    with pytest.raises(UnicodeEncodeError):
        to_bytes("\u0100")


def test_the_name_appears_last(tmp_path: Path) -> None:
    """An error leaves nothing; a file that exists is kept, also one that appears meanwhile."""
    path = tmp_path / "a"
    with suppress(RuntimeError), BackupFile(path, compress=True) as file:
        file.add([HEADER])
        assert len(list(tmp_path.iterdir())) == 1
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write(path, [])
    with pytest.raises(InvalidInput, match="exists; give another name"):
        write(path, [])
    with pytest.raises(InvalidInput, match="cannot be written"):
        write(tmp_path / "no" / "a", [])
    with BackupFile(tmp_path / "b", compress=True) as file:
        (tmp_path / "b").write_bytes(b"mine")
        with pytest.raises(BackupFailed, match="File exists"):
            file.finish({}, ended_ms=0, skipped=[])
    assert (tmp_path / "b").read_bytes() == b"mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


@each_case("compress", [True, False])
def test_many_empty_rows(tmp_path: Path, *, compress: bool) -> None:
    """A chunk of line ends takes no memory per line; it is refused at the first one."""
    text = b'{"kind":"header",\n' + b"\n" * (1 << 20)
    text += encode_row(ChunkEnd(1, text.count(b"\n"), sha256(text).hexdigest())) + b"\n"
    path = tmp_path / f"many{compress}"
    path.write_bytes(gzip.compress(text, mtime=0) if compress else text)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedBackup):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


def test_a_row_that_no_reader_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup fails rather than to end with a file that cannot be restored."""
    monkeypatch.setattr(files, "MAX_CHUNK_BYTES", 1 << 20)
    with pytest.raises(BackupFailed, match="a task or key takes"):
        write(tmp_path / "a", [task(result="x" * (1 << 20))])
    assert list(tmp_path.iterdir()) == []


@each_case(("begun_ms", "ended_ms"), [(10**17, 0), (-1, 0), (0, 10**17)])
def test_times_out_of_range(tmp_path: Path, begun_ms: int, ended_ms: int) -> None:
    """A time beyond the calendar is damage, not an error of the program."""
    path = tmp_path / f"{begun_ms} {ended_ms}"
    with BackupFile(path, compress=True) as file:
        file.add([msgspec.structs.replace(HEADER, begun_ms=begun_ms)])
        file.finish({}, ended_ms=ended_ms, skipped=[])
    with pytest.raises(DamagedBackup, match="a time is wrong"):
        read(path)


def test_a_floor_that_rose(tmp_path: Path) -> None:
    """The floor of a backup is the higher one of its begin and its end."""
    for floor in (0, 2, 3):
        path = tmp_path / f"{floor}"
        with BackupFile(path, compress=True) as file:
            file.add([msgspec.structs.replace(HEADER, floor=2)])
            file.finish({}, ended_ms=0, skipped=[], floor=floor)
        assert check_file(BackupReader(path)).floor == max(2, floor)
