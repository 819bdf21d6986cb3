"""Provides the locks of an attempt that runs without a server, from memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.locks.renewal import LockRenewer, RenewedLock
from orchestrator.testing.offline import NoStore, offline_services
from orchestrator.workers.runtime.locking import Locking

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.workers.runtime.attempt import Attempt


class OfflineLocking(Locking):
    """Locks in memory, for one attempt. They never lapse."""

    def __init__(self, settings: Settings) -> None:
        services = offline_services(settings)
        store = _LockStore(services.endpoint, services.keys, name="offline")
        super().__init__(replace(services, store=store), worker="")
        self.renewer = _OfflineLockRenewer()

    async def _owns(self, attempt: Attempt, lease_ms: int) -> bool:  # noqa: ARG002 - there is only one attempt
        return True


class _OfflineLockRenewer(LockRenewer):
    def add(self, lock: RenewedLock) -> int:
        lock.stop()
        return 0


class _LockStore(NoStore):
    """Runs the lock scripts in memory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: dict[tuple[str, str], str] = {}
        self._fences = itertools.count(1)

    def blocking_link(self, block_s: float, *, name: str = "block") -> Any:
        """Return a link that never opens, so that waiters of a lock poll."""
        return super(NoStore, self).blocking_link(block_s, name=name)

    async def call(self, call: Any, *, retry_for_s: float = 0.0) -> Any:
        """Run a lock script in memory; refuse any other script."""
        scope = call.args.get("scope")
        match call.script:
            case "locks/take" | "locks/claim":
                at = (scope, call.args["lock"])
                if at in self._held:
                    return call.parse([b"held", self._held[at].encode(), 1])
                middle = [call.args[name] for name in ("task", "generation") if name in call.args]
                end = [call.args["owner"]] if "owner" in call.args else []
                value = ":".join(map(str, [next(self._fences), *middle, call.args["nonce"], *end]))
                self._held[at] = value
                return call.parse([b"taken", value.encode()])
            case "locks/drop":
                words = [self._drop(scope, *row) for row in msgspec.msgpack.decode(call.args["rows"])]
                return call.parse([part for word in words for part in (word, b"")])
            case "locks/renew":
                rows = msgspec.msgpack.decode(call.args["rows"])
                found = [(self._held.get((scope, lock), ""), value) for lock, value, _ in rows]
                pairs = [(b"kept" if held == value else b"lost", held.encode()) for held, value in found]
                return call.parse([part for pair in pairs for part in pair])
            case "locks/await_for":
                return call.parse([b"noted"])
            case "locks/peek":
                rows = [
                    part
                    for (of, lock), value in self._held.items()
                    if of == scope and call.args["lock"] in {"", lock}
                    for part in (str(lock).encode(), value.encode(), 1, 0)
                ]
                return call.parse(rows)
        return await super().call(call, retry_for_s=retry_for_s)

    def _drop(self, scope: str, lock: str, nonce: str) -> bytes:
        if nonce not in self._held.get((scope, lock), "").split(":"):
            return b"not_held"
        del self._held[scope, lock]
        return b"released"
