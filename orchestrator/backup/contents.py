"""Reads a whole backup file and checks it, before anything is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.backup.checks import check_row
from orchestrator.backup.rows import CommandsRow, SavedTask, to_bytes
from orchestrator.control.desired import read_desired
from orchestrator.control.signing import Signer
from orchestrator.core.errors import InvalidInput
from orchestrator.core.formats import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.backup.files import BackupReader
    from orchestrator.backup.rows import End, Header
    from orchestrator.control.desired import Desired


@dataclass(frozen=True, slots=True)
class CheckedBackup:
    """The contents of a file of which every row was checked.

    Attributes:
        commands: number of active commands, and of jobs, which are not restored.
    """

    header: Header
    end: End
    commands: int
    jobs: int
    signed: bool

    @property
    def floor(self) -> int:
        """The lowest format that the pool admitted at the end of the backup."""
        return max(self.header.floor, self.end.floor)


def check_file(reader: BackupReader) -> CheckedBackup:
    """Read a whole file and check it. Blocks.

    Raises:
        DamagedBackup: it cannot be restored; the message names the place.
        InvalidInput: it cannot be read.
    """
    commands = jobs = 0
    signed = False
    counts: Counter[str] = Counter()
    for row in reader.rows():
        assert reader.header is not None
        try:
            check_row(row, pool=reader.header.pool)
        except InvalidInput as wrong:
            raise reader.damaged(str(wrong)) from None
        match row:
            case SavedTask() if not row.is_stub:
                counts["tasks"] += 1
            case CommandsRow():
                desired = desired_of(row, Signer("", "", reader.header.root))
                commands, jobs = commands + len(desired.commands), jobs + len(desired.jobs)
                signed = signed or any(one.issued.key for one in desired.commands.values())
    assert reader.header is not None
    assert reader.end is not None
    if counts["tasks"] != reader.end.counts.get("tasks", 0):
        raise reader.damaged("the number of its tasks is wrong")
    checked = CheckedBackup(reader.header, reader.end, commands, jobs, signed)
    if checked.floor > FORMAT:
        raise reader.damaged(f"it is of a pool of format {checked.floor}, and this program has {FORMAT}")
    return checked


def desired_of(row: CommandsRow, signer: Signer) -> Desired:
    """Return the saved desired state, with the commands that a signer accepts."""
    return read_desired(_flat(row.desired), signer, _flat(row.revisions))


def _flat(fields: Mapping[str, str]) -> list[bytes]:
    return [to_bytes(text) for pair in fields.items() for text in pair]
