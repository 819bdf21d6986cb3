"""Writes and reads backup files: chunks of about a mebibyte with a checksum each, and one over the whole file.

A compressed file is a sequence of gzip members, one per chunk, so that `zcat` prints it. The last chunk has only the
row `end`, with the checksum of all bytes before it. A file without this row is incomplete.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import msgspec

from orchestrator.backup.rows import (
    LAST_MS,
    MAGIC,
    VERSION,
    ChunkEnd,
    DataRow,
    End,
    Header,
    decode_row,
    encode_row,
)
from orchestrator.core.errors import BackupFailed, DamagedBackup, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

CHUNK_BYTES: Final = 1 << 20
MAX_CHUNK_BYTES: Final = 1 << 27
"""Largest chunk, which one task with large results may fill. Guards against files that unpack to any size."""
LEVEL: Final = 4
"""Compression level: about twice as fast as the default one, for files that are a few percent larger."""
_BLOCK_BYTES: Final = 1 << 16
_END_BYTES: Final = 1 << 10
"""Room for the last row of a chunk."""
_FIRST_ROW: Final = b'{"kind":"header",'
_GZIP: Final = 31
"""Window bits of zlib for a gzip member."""
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
"""How each member begins: deflate, no flags, no time."""


class BackupFile:
    """Writes a file. It has its name when it is complete and on the disk; until then, and after an error, it is absent.

    Args:
        target: path of the file, or what takes its bytes.
        compress: write gzip members.

    Attributes:
        bytes: number of written bytes.
    """

    def __init__(self, target: Path | Callable[[bytes], object], *, compress: bool) -> None:
        self._path = target if isinstance(target, Path) else None
        self._send = None if isinstance(target, Path) else target
        self._compress = compress
        self._temporary: Path | None = None
        self._file: BinaryIO | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._chunks = 0
        self._whole = sha256()
        self.bytes = 0

    def __enter__(self) -> Self:
        if self._path is None:
            return self
        if self._path.exists():
            raise InvalidInput(f"{self._path} exists; give another name, or remove it")
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as failed:
            raise InvalidInput(f"{self._path} cannot be written: {failed.strerror}") from None
        self._temporary, self._file = temporary, os.fdopen(handle, "wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            # After an error the bytes in the buffer may fail again.
            with suppress(OSError):
                self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def add(self, rows: Iterable[Header | DataRow]) -> None:
        """Add rows; writes a chunk when they fill one. Blocks.

        Raises:
            BackupFailed: the disk is full, for example, or a row is too large.
        """
        for row in rows:
            line = encode_row(row) + b"\n"
            if self._size + len(line) > MAX_CHUNK_BYTES - _END_BYTES:
                raise BackupFailed(
                    f"a task or key takes {len(line)} bytes, and a backup has room for {MAX_CHUNK_BYTES}"
                )
            self._lines.append(line)
            self._size += len(line)
            if self._size >= CHUNK_BYTES:
                self._write_chunk()

    def finish(self, counts: dict[str, int], *, ended_ms: int, skipped: list[str], floor: int = 0) -> None:
        """Write the last chunk, store the file on the disk, and give it its name. Blocks.

        The arguments are those of the row `End`.

        Raises:
            BackupFailed: as `add`; or another program has made a file of this name meanwhile.
        """
        if self._lines:
            self._write_chunk()
        end = End(self._chunks, counts, ended_ms, skipped, self._whole.hexdigest(), floor)
        self._lines = [encode_row(end) + b"\n"]
        self._write_chunk()
        if self._file is None or self._path is None or self._temporary is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            # A rename would replace a file of this name.
            self._path.hardlink_to(self._temporary)
            self._temporary.unlink()
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as failed:
            raise self._failed(failed) from None

    def _write_chunk(self) -> None:
        text = b"".join(self._lines)
        end = ChunkEnd(self._chunks + 1, len(self._lines), sha256(text).hexdigest())
        text += encode_row(end) + b"\n"
        self._chunks += 1
        self._lines, self._size = [], 0
        if self._compress:
            packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
            text = packer.compress(text) + packer.flush()
        self._whole.update(text)
        self.bytes += len(text)
        if self._send is not None:
            self._send(text)
        elif self._file is not None:
            try:
                self._file.write(text)
            except OSError as failed:
                raise self._failed(failed) from None

    def _failed(self, failed: OSError) -> BackupFailed:
        return BackupFailed(f"{self._path} cannot be written: {failed.strerror}; nothing is left of it")


class BackupReader:
    """Reads a file and checks it as it goes.

    Args:
        path: of the file.

    Attributes:
        header: its first row, after `rows` has begun.
        end: its last row, after `rows` has ended.
        place: chunk and row that are read, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunk, self._row, self._offset = 0, 0, 0
        self.header: Header | None = None
        self.end: End | None = None

    @property
    def place(self) -> str:
        """Chunk, byte and row that were read last."""
        return f"chunk {self._chunk} (from byte {self._offset}), row {self._row}"

    def damaged(self, problem: str) -> DamagedBackup:
        """Return the error for a problem at the present place."""
        return DamagedBackup(f"{self._path} is damaged: {problem}, in {self.place}")

    def rows(self) -> Iterator[DataRow]:
        """Yield the rows with data; blocks.

        Raises:
            DamagedBackup: the file is not a backup, is damaged, incomplete, or of a newer version.
        """
        self._chunk, self.header, self.end = 0, None, None
        try:
            with self._path.open("rb") as file:
                yield from self._data(file)
        except OSError as failed:
            raise InvalidInput(f"{self._path} cannot be read: {failed.strerror}") from None

    def _data(self, file: BinaryIO) -> Iterator[DataRow]:
        whole = sha256()
        for raw, count, lines in self._chunks_of(file):
            before = whole.hexdigest()
            whole.update(raw)
            if self.end is not None:
                raise self.damaged("it goes on behind its end")
            for number, line in enumerate(lines, start=1):
                self._row = number
                row = self._decode(line)
                match row:
                    case Header():
                        self._check_header(row)
                    case End():
                        if row.sha256 != before or row.chunks != self._chunk - 1 or count != 1:
                            raise self.damaged("the checksum of the file is wrong")
                        self._check_time(row.ended_ms)
                        self.end = row
                    case ChunkEnd():
                        raise self.damaged("a chunk ends twice")
                    case _:
                        if self.header is None:
                            raise self.damaged("it has no header")
                        yield row
        if self.end is None:
            self._row = 0
            raise self.damaged("it is incomplete" if self.header else "it is empty or not a backup")

    def _check_header(self, row: Header) -> None:
        if self.header is not None or row.magic != MAGIC:
            raise self.damaged("it has a second header" if self.header else "it is not a backup")
        if row.version != VERSION:
            raise DamagedBackup(
                f"{self._path} has version {row.version}, and this program reads version {VERSION}; "
                f"restore it with a newer version of this program (it was written by {row.program})"
            )
        self._check_time(row.begun_ms)
        self.header = row

    def _check_time(self, time_ms: int) -> None:
        if not 0 <= time_ms <= LAST_MS:
            raise self.damaged("a time is wrong")

    def _decode(self, line: bytes | memoryview) -> Header | DataRow | ChunkEnd | End:
        try:
            row: Header | DataRow | ChunkEnd | End = decode_row(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as unreadable:
            raise self.damaged(f"a row cannot be read ({unreadable})") from None
        return row

    def _chunks_of(self, file: BinaryIO) -> Iterator[tuple[bytes | bytearray, int, Iterator[memoryview]]]:
        """Yield each checked chunk: its bytes in the file, and number and texts of its rows. A row is a view of it."""
        compressed = file.read(2) == _GZIP_HEAD[:2]
        file.seek(0)
        texts = self._members(file) if compressed else self._plain(file)
        for raw, text in texts:
            begin = text.rfind(b"\n", 0, max(0, len(text) - 1)) + 1
            count = text.count(b"\n") - 1
            last = bytes(text[begin:]).removesuffix(b"\n")
            end = self._decode(last)
            problem = ""
            if not isinstance(end, ChunkEnd) or encode_row(end) != last:
                problem = "a chunk has no end"
            elif end.sha256 != sha256(memoryview(text)[:begin]).hexdigest():
                problem = "the checksum of a chunk is wrong"
            elif end.number != self._chunk or end.rows != count:
                problem = "a chunk is missing"
            if problem:
                raise self.damaged(problem)
            yield raw, count, _lines(text, begin)
            self._offset += len(raw)

    def _begin_chunk(self) -> None:
        self._chunk += 1
        self._row = 0

    def _members(self, file: BinaryIO) -> Iterator[tuple[bytes, bytearray]]:
        self._offset = 0
        data = file.read(_BLOCK_BYTES)
        while data:
            self._begin_chunk()
            while len(data) < len(_GZIP_HEAD) and (more := file.read(_BLOCK_BYTES)):
                data += more
            if not data.startswith(_GZIP_HEAD):
                raise self.damaged("it is not a backup" if self._chunk == 1 else "no chunk begins here")
            unpacker = zlib.decompressobj(_GZIP)
            raw: list[bytes] = []
            text = bytearray()
            while not unpacker.eof:
                if not data:
                    raise self.damaged("it is incomplete")
                try:
                    text += unpacker.decompress(data, MAX_CHUNK_BYTES + 1 - len(text))
                except zlib.error as broken:
                    raise self.damaged(f"it cannot be unpacked ({broken})") from None
                if len(text) > MAX_CHUNK_BYTES:
                    raise self.damaged(f"a chunk is larger than {MAX_CHUNK_BYTES} bytes")
                raw.append(data)
                data = unpacker.unconsumed_tail or (b"" if unpacker.eof else file.read(_BLOCK_BYTES))
                if unpacker.unconsumed_tail:
                    raw[-1] = raw[-1][: len(raw[-1]) - len(data)]
            rest = unpacker.unused_data
            whole = b"".join(raw)
            yield whole[: len(whole) - len(rest)], text
            data = rest or file.read(_BLOCK_BYTES)

    def _plain(self, file: BinaryIO) -> Iterator[tuple[bytearray, bytearray]]:
        self._offset = 0
        text = bytearray()
        self._begin_chunk()
        while line := file.readline(MAX_CHUNK_BYTES + 1):
            if not text and not line.startswith(_FIRST_ROW) and self._chunk == 1:
                raise self.damaged("it is not a backup")
            text += line
            if len(text) > MAX_CHUNK_BYTES:
                raise self.damaged(f"a chunk is larger than {MAX_CHUNK_BYTES} bytes")
            if not line.endswith(b"\n"):
                raise self.damaged("it is incomplete")
            if line.startswith(b'{"kind":"chunk"'):
                yield text, text
                text = bytearray()
                self._begin_chunk()
        if text:
            raise self.damaged("it is incomplete")


def _lines(text: bytearray, end: int) -> Iterator[memoryview]:
    view, begin = memoryview(text), 0
    while begin < end:
        at = text.index(b"\n", begin)
        yield view[begin:at]
        begin = at + 1
