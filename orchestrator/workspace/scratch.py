"""Private paths of one agent within a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.keys import ScopeKeys
from orchestrator.workspace.model import DELETE
from orchestrator.workspace.paths import change_paths
from orchestrator.workspace.queries import read_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.workspace.model import Applied, Delete, Json, Patched, Versioned
    from orchestrator.workspace.writer import WorkspaceWriter


class Scratch:
    """Reads and changes the private paths of one agent. They expire with the workspace and have no events.

    Attributes:
        agent: name of the agent.
    """

    __slots__ = ("_part", "_writer", "agent")

    def __init__(self, writer: WorkspaceWriter) -> None:
        self._writer = writer
        self.agent = writer.agent
        self._part = ScopeKeys.scratch_part(writer.agent)

    async def get(self, *paths: str) -> dict[str, Versioned]:
        """Return these paths, or all paths. Missing paths are left out."""
        return await read_paths(self._writer.scope, self._part, paths)

    async def list(self) -> list[str]:
        """Return the names of all paths."""
        return sorted(await self.get())

    async def set(
        self,
        path: str,
        value: Json,
        *,
        if_version: int | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> Applied:
        """Write a value to a path; `if_version` and `newer_than` as in `Workspace.set`."""
        return await change_paths(
            self._writer,
            {path: value},
            if_versions=None if if_version is None else {path: if_version},
            newer_than=newer_than,
            op_id=op_id,
            owner=self.agent,
        )

    async def patch(
        self,
        changes: Mapping[str, Json | Delete],
        *,
        if_versions: Mapping[str, int] | None = None,
        op_id: str | None = None,
    ) -> Patched:
        """Change several paths, all or none; `if_versions` as in `Workspace.patch`."""
        return await change_paths(self._writer, changes, if_versions=if_versions, op_id=op_id, owner=self.agent)

    async def delete(self, *paths: str, op_id: str | None = None) -> Patched:
        """Delete paths; a missing path is not an error."""
        return await change_paths(self._writer, dict.fromkeys(paths, DELETE), op_id=op_id, owner=self.agent)
