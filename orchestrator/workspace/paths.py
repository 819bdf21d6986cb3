"""Changes of paths, in the document and in scratches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, VersionConflict
from orchestrator.core.ids import check_text
from orchestrator.core.reading import read_text, read_whole
from orchestrator.workspace import scripts
from orchestrator.workspace.model import DELETE, Counted, Patched
from orchestrator.workspace.writer import check_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.workspace.model import Delete, Json
    from orchestrator.workspace.scripts import ChangeReply, PathRow
    from orchestrator.workspace.writer import WorkspaceWriter

MAX_NUMBER: Final = 2**53 - 1
"""Lua counts in doubles, which are exact up to this number."""
MAX_GIVEN_VERSION: Final = 2**52
"""Highest version that a caller may give, so that versions can still rise."""


async def change_paths(
    writer: WorkspaceWriter,
    wanted: Mapping[str, Json | Delete],
    *,
    if_versions: Mapping[str, int] | None = None,
    newer_than: int | None = None,
    op_id: str | None = None,
    owner: str = "",
) -> Patched:
    """Change paths of the document, or of the scratch of `owner`: all or none."""
    expected = dict(if_versions or {})
    if unknown := expected.keys() - wanted.keys():
        raise InvalidInput(f"if_versions names {min(unknown)!r}, which is not among the changes")
    if newer_than is not None and expected:
        raise InvalidInput("give if_version or newer_than, not both")
    rows = [_row(writer, path, value, expected.get(path), newer_than) for path, value in wanted.items()]
    check_rows("paths", len(rows), sum(len(row.value) for row in rows))
    answer = await _send(writer, rows, op_id, owner)
    if answer.status == "conflict":
        path, version = read_text(answer.rest[0]), answer.rest[1]
        if newer_than is not None:
            if version == newer_than:  # the caller numbers its writes, and repeats this one
                return Patched(version, answer.rest[2], duplicate=True, versions={path: version})
            raise VersionConflict(path, version, f"one below {newer_than}")
        raise VersionConflict(path, version, f"{expected[path]}")
    if answer.status == "duplicate" and len(answer.rest) != 2 * len(rows):
        raise _named_another(writer, op_id)
    versions = dict(zip(wanted, answer.rest[::2], strict=True))
    return Patched(max(versions.values()), answer.revision, answer.status == "duplicate", versions)


async def increment(writer: WorkspaceWriter, path: str, by: int, op_id: str | None) -> Counted:
    """Add to the whole number at a path; a missing path counts as 0."""
    if not isinstance(by, int) or isinstance(by, bool) or abs(by) > MAX_NUMBER:
        raise InvalidInput(f"incr adds whole numbers up to {MAX_NUMBER}, not {by!r:.80}")
    row = scripts.PathRow(check_path(writer, path), "incr", str(by).encode(), "any", 0)
    answer = await _send(writer, [row], op_id, "")
    if answer.status == "number":
        raise InvalidInput(
            f"path {path!r} holds no whole number, or its sum would pass {MAX_NUMBER}; nothing was changed"
        )
    if len(answer.rest) != 2 or not answer.rest[1]:
        raise _named_another(writer, op_id)
    return Counted(answer.rest[0], answer.revision, answer.status == "duplicate", read_whole(answer.rest[1]))


def _named_another(writer: WorkspaceWriter, op_id: str | None) -> InvalidInput:
    return InvalidInput(
        f"op_id {op_id!r} names another change of session {writer.scope.keys.id!r}, which has been made; nothing was "
        "changed; give each change its own op_id, as f'{ctx.task_id}/step'"
    )


async def _send(writer: WorkspaceWriter, rows: list[PathRow], op_id: str | None, owner: str) -> ChangeReply:
    return await writer.change(lambda change: scripts.patch(change, rows=rows, owner=owner), op_id)


def check_path(writer: WorkspaceWriter, path: str) -> str:
    """Return `path` if it can be written.

    Raises:
        InvalidInput: see `check_text`; with `workspace.json_projection` also a path that RedisJSON cannot name.
    """
    if writer.settings.json_projection and isinstance(path, str) and ('"' in path or "\\" in path):
        raise InvalidInput(
            f"path {path!r:.80} has a double quote or a backslash, which workspace.json_projection forbids"
        )
    return check_text("path", path)


def _row(
    writer: WorkspaceWriter, path: str, value: Json | Delete, expected: int | None, newer_than: int | None
) -> PathRow:
    check_path(writer, path)
    for number, most in ((expected, MAX_NUMBER), (newer_than, MAX_GIVEN_VERSION)):
        if number is not None and (not isinstance(number, int) or not 0 <= number <= most):
            raise InvalidInput(f"a version is a whole number from 0 to {most}, not {number!r:.80}")
    condition, number = "any", 0
    if expected is not None:
        condition, number = "is", expected
    elif newer_than is not None:
        condition, number = "newer", newer_than
    if value is DELETE:
        return scripts.PathRow(path, "del", b"", condition, number)
    return scripts.PathRow(path, "set", writer.encode(f"value of {path!r}", value), condition, number)
