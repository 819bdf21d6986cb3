"""Declares the rows of a backup file: JSON lines, one object each, with its kind.

A value of Redis is a string of bytes. A row has it as a text with one character per byte (ISO 8859-1), so that a person
can read the file and every byte survives.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from orchestrator.store.keys import PoolKeys

VERSION: Final = 1
"""Version of the file. Raise it when an older program would misread a row."""
LAST_MS: Final = 253_402_300_799_999
"""The last moment of the year 9999, in milliseconds."""
MAGIC: Final = "redis-orchestrator backup"


class FileRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind", gc=False):
    """Base of all rows."""


class Header(FileRow, frozen=True, tag="header"):
    """First row of a file.

    Attributes:
        magic: `MAGIC`, also for the program `file`.
        version: of the file.
        program: version of the program that wrote it.
        server: product and version of its server.
        prefix, pool: where the data comes from.
        floor: lowest format that the pool admitted.
        begun_ms: time of the begin by the clock of Redis.
        shared: whether it has the shared state of the prefix: workspaces, agent states, boards, limits by name.
    """

    magic: str
    version: int
    program: str
    server: str
    prefix: str
    pool: str
    floor: int
    begun_ms: int
    shared: bool

    @property
    def root(self) -> str:
        """Root of the keys of the saved pool."""
        return PoolKeys(self.prefix, self.pool).root


class CommandsRow(FileRow, frozen=True, tag="commands"):
    """The desired state.

    Attributes:
        desired: fields of the hash `desired`.
        revisions: fields of `desired:revisions`.
    """

    desired: dict[str, str]
    revisions: dict[str, str]


class SavedTask(FileRow, frozen=True, tag="task"):
    """One task, as it was at one moment.

    Attributes:
        id: of the task.
        left_ms: remaining lifetime of its record; 0: it had none.
        fields: of its record.
        score: its place in its queue, if it was ready.
        turn: its place in its lane.
        began: a worker had read its entry.
        digest: of its body, if its idempotency key belongs to it.
        children: its children.
        children_ms: remaining lifetime of their list.
    """

    id: str
    left_ms: int
    fields: dict[str, str]
    score: str = ""
    turn: str = ""
    began: bool = False
    digest: str = ""
    children: list[str] = []
    children_ms: int = 0

    @property
    def is_stub(self) -> bool:
        """True for what is left of a deleted task: when it was deleted, and in which state it had ended."""
        return self.fields.keys() == {"deleted", "ended_as"}


class OutputRow(FileRow, frozen=True, tag="output"):
    """Entries of the output of a task; they come before its `SavedTask`.

    Attributes:
        id: of the task.
        left_ms: remaining lifetime.
        entries: id, then names and values of the fields.
    """

    id: str
    left_ms: int
    entries: list[list[str]]


class KeyRow(FileRow, frozen=True, tag="key"):
    """A key that is stored as it is, or a part of a large one.

    Attributes:
        scope: of the key, as `session:S` with the id encoded; empty for a key of the pool.
        suffix: of the key.
        type: Redis type.
        values: the text; members; names and values; scores and members; or of a stream, per entry its id and the
            number of its fields' names and values, then these.
        left_ms: remaining lifetime; 0: it has none.
        until_ms: time at which it ends, of a key that counts what happened in a span of time.
        more: a further part of the key before.
    """

    scope: str
    suffix: str
    type: str
    values: list[str]
    left_ms: int = 0
    until_ms: int = 0
    more: bool = False


class ChunkEnd(FileRow, frozen=True, tag="chunk"):
    """Last row of a chunk.

    Attributes:
        number: of the chunk, from 1.
        rows: number of its rows, without this one.
        sha256: of its text, without this row.
    """

    number: int
    rows: int
    sha256: str


class End(FileRow, frozen=True, tag="end"):
    """Last row of a file, in a chunk of its own.

    Attributes:
        chunks: number of chunks before.
        counts: number of rows of each kind, and of tasks by state.
        ended_ms: time of the end by the clock of Redis.
        skipped: records that were not saved because they are damaged, at most 100.
        sha256: of all bytes of the file before this chunk.
        floor: lowest format that the pool admitted at the end, which may have risen since the header.
    """

    chunks: int
    counts: dict[str, int]
    ended_ms: int
    skipped: list[str]
    sha256: str
    floor: int = 0


DataRow: TypeAlias = CommandsRow | SavedTask | OutputRow | KeyRow
AnyRow: TypeAlias = Header | DataRow | ChunkEnd | End

encode_row = msgspec.json.Encoder().encode
decode_row = msgspec.json.Decoder(AnyRow).decode


def to_text(data: bytes) -> str:
    """Return bytes of Redis as the text of a row."""
    return data.decode("latin-1")


def to_bytes(text: str) -> bytes:
    """Return the text of a row as bytes of Redis.

    Raises:
        UnicodeEncodeError: it has a character beyond one byte.
    """
    return text.encode("latin-1")
