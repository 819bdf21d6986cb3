"""The pool into which a backup is restored: it must be empty, and one run at a time writes into it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from orchestrator.backup import scripts
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import ConfigError, RestoreRefused
from orchestrator.core.formats import RESTORING, Floor
from orchestrator.core.ids import new_token
from orchestrator.repair.servers import each_server, scan
from orchestrator.services import open_services, pool_keys
from orchestrator.store.found_keys import sort_key
from orchestrator.store.keys import stem_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.backup.contents import CheckedBackup
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services

FOUND_KEYS: Final = 5
"""Keys of an occupied target that a refusal names."""


@asynccontextmanager
async def open_target(settings: Settings) -> AsyncIterator[Services]:
    """Connect to a pool that may be restored only in part, which other programs refuse."""
    floor = Floor(settings.pool, pool_keys(settings).root)
    async with open_services(settings, name="restore", floor=floor) as services:
        yield services


class Target:
    """The pool into which a backup is restored.

    Args:
        services: of the pool.
        checked: the file.
        shared: whether to restore the shared state of the prefix.
    """

    def __init__(self, services: Services, checked: CheckedBackup, *, shared: bool) -> None:
        self._services, self._store, self._keys = services, services.store, services.keys
        self._checked, self._shared = checked, shared and checked.header.shared
        self._file, self._run = f"{RESTORING} {checked.end.sha256[:32]}", new_token()
        self._retry_for_s = services.settings.redis.command_timeout_s

    @property
    def mark(self) -> str:
        """The mark of this run. Each script of the restore checks it, so that a replaced run changes nothing."""
        return f"{self._file} {self._run}"

    async def check(self) -> bool:
        """Return whether a restore of the same file was interrupted here.

        Raises:
            RestoreRefused: the pool is not empty, or another file was restored in part.
            ConfigError: the saved commands are signed, and no secret is configured.
        """
        header = self._checked.header
        if self._checked.signed and not signer_of(self._services.settings, place=self._keys.root).wanted:
            raise ConfigError(
                "the commands in this backup are signed; set control.secret to the secret of the saved pool, "
                "so that its stops and pauses can be signed for the restored one"
            )
        mark = await self._store.execute("GET", self._keys.format)
        if mark is not None and mark.startswith(f"{self._file} ".encode()):
            return True
        if mark is not None and mark.startswith(RESTORING.encode()):
            raise self._occupied()
        found = await self._find_keys()
        if found:
            raise RestoreRefused(
                f"the target is not empty: {', '.join(found)}; restore into a prefix without data "
                f"(--into {header.prefix}-restored), or, if only shared state is there, add --only-pool"
            )
        return False

    def _occupied(self) -> RestoreRefused:
        return RestoreRefused(
            f"pool {self._keys.pool!r} holds a part of another backup; finish that restore, or use another prefix"
        )

    async def _find_keys(self) -> list[str]:
        found: list[str] = []
        allowed = self._keys.format.encode()
        async with each_server(self._services) as stores:
            for store in stores:
                async for names in scan(store, stem_of(self._keys.prefix)):
                    keys = [(name, sort_key(name, prefix=self._keys.prefix, pool=self._keys.pool)) for name in names]
                    for name, key in keys:
                        matters = name != allowed and (
                            name.startswith(self._keys.stem.encode())
                            or (self._shared and key is not None and bool(key.scope))
                        )
                        if matters and len(found) < FOUND_KEYS:
                            found.append(name.decode(errors="backslashreplace"))
                    if len(found) == FOUND_KEYS:
                        return found
        return found

    async def begin(self) -> None:
        """Mark the pool for this run, so that no program starts in it, and look again.

        Raises:
            RestoreRefused: a program came first.
        """
        begun = await self._store.call(
            scripts.begin(self._keys, mark=self._file, run=self._run), retry_for_s=self._retry_for_s
        )
        if begun is scripts.Begun.OCCUPIED:
            raise self._occupied()
        if begun is scripts.Begun.USED:
            raise RestoreRefused(f"a program uses pool {self._keys.pool!r}; stop it, or use another prefix")

    async def check_run(self) -> None:
        """Check that no later run has replaced this one.

        Raises:
            RestoreRefused: a later one has.
        """
        stored: bytes | None = await self._store.read_with_retry(
            lambda: self._store.execute("GET", self._keys.format), retry_for_s=self._retry_for_s
        )
        scripts.written(0 if stored == self.mark.encode() else -1)

    async def finish(self) -> None:
        """Admit programs.

        Raises:
            RestoreRefused: a later run has replaced this one.
        """
        floor = self._checked.floor
        await self._store.call(scripts.finish(self._keys, mark=self.mark, floor=floor), retry_for_s=self._retry_for_s)
