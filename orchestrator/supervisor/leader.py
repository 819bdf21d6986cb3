"""The lease of the leading supervisor. It saves work; two leaders at once do no harm.

The holder trusts the lease for less time than Redis keeps it, counted from before the request, so that it stops before
the next leader starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.agents import scripts as registry
from orchestrator.control.desired import is_signed
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.notify import WAITS_FOR_REDIS
from orchestrator.supervisor.loss_check import LossCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orchestrator.services import Services

TRUST: Final = 0.8
LEADS: Final = "leads"
CANNOT_VERIFY: Final = "stands by: control.secret is not set, and the pool has signed commands"
STANDS_BY: Final = "stands by: another supervisor leads"
_log = get_logger(__name__)


class Leader:
    """Runs the work of the supervisor while it holds the lease.

    Args:
        services: of the pool.
        supervisor: the id of this one.
        on_state: called after each request for the lease, with `LEADS`, `STANDS_BY`, `WAITS_FOR_REDIS` or the text of a
            refusal.
    """

    def __init__(
        self, services: Services, *, supervisor: str, on_state: Callable[[str], None] = lambda _: None
    ) -> None:
        self._services, self._supervisor, self._on_state = services, supervisor, on_state
        self._lease_s = services.settings.supervisor.leader_lease_s
        self._renew_s = self._lease_s / 3
        self._trusted_until_s = 0.0
        self._leads = self._stands_by = False
        self._losses = LossCheck(services)
        self._signed_found = anyio.Event()
        self._needs_secret = False

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Acquire and renew the lease until cancelled; `work` runs while the lease is held.

        Raises:
            FormatMismatch: the pool no longer admits this version.
        """
        floor = self._services.store.floor
        self._turn = self._services.watch_loop("leader", waits_s=self._renew_s)
        try:
            while not floor.shuts_out:
                self._turn.record()
                if await self._acquire():
                    _log.info("leadership_acquired", supervisor=self._supervisor)
                    async with anyio.create_task_group() as group:
                        group.start_soon(work)
                        await self._renew()
                        group.cancel_scope.cancel()
                    self._leads = False
                    _log.warning("leadership_lost", supervisor=self._supervisor)
                if not floor.shuts_out:
                    await anyio.sleep(self._renew_s)
            raise floor.refusal()
        finally:
            self._turn.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0, shield=True):
                await self._resign()

    def give_up(self) -> None:
        """Stop leading, because the pool has signed commands and this supervisor has no secret."""
        self._signed_found.set()

    async def _lacks_secret(self) -> bool:
        """Return whether the pool has signed commands that this supervisor cannot verify.

        It would carry out an unsigned start that ends a signed stop. Another supervisor leads, or none.
        """
        services = self._services
        if self._leads or services.settings.control.secret is not None:
            return False
        found = is_signed(await services.store.execute("HGETALL", services.keys.desired))
        if found and not self._needs_secret:
            _log.error("leadership_needs_secret", supervisor=self._supervisor)
        self._needs_secret = found
        return found

    async def _acquire(self) -> bool:
        asked_s = time.monotonic()
        floor, lease_ms = self._services.store.floor, round(self._lease_s * 1000)
        try:
            lacks_secret = await self._lacks_secret()
            call = registry.lead(
                self._services.keys,
                supervisor=self._supervisor,
                lease_ms=0 if lacks_secret else lease_ms,
                floor=floor.value,
                last=self._losses.last,
                key=signer_of(self._services.settings, place=self._services.keys.root).key,
            )
            answer = await self._services.store.call(call)
        except StoreError as failure:
            _log.failure("leadership_request_failed", error=failure)
            self._on_state(WAITS_FOR_REDIS if isinstance(failure, ServerUnavailable) else str(failure))
            return False
        floor.note(answer.floor)
        if answer.leads:
            self._trusted_until_s = asked_s + self._lease_s * TRUST
            _log.debug("leadership_renewed", supervisor=self._supervisor)
        elif not self._stands_by and not lacks_secret:
            _log.info("supervisor_stands_by", supervisor=self._supervisor)
        self._stands_by = not answer.leads
        self._leads = answer.leads
        waits = CANNOT_VERIFY if lacks_secret else STANDS_BY
        self._on_state(LEADS if answer.leads else waits)
        await self._losses.compare(answer)
        return answer.leads

    async def _renew(self) -> None:
        while True:
            with anyio.move_on_after(self._renew_s):
                await self._signed_found.wait()
                self._signed_found, self._leads = anyio.Event(), False
                await self._resign()
                return
            self._turn.record()
            with anyio.move_on_after(max(0.0, self._trusted_until_s - time.monotonic())):
                await self._acquire()
            if time.monotonic() >= self._trusted_until_s or self._services.store.floor.shuts_out:
                return

    async def _resign(self) -> None:
        try:
            await self._services.store.call(registry.resign(self._services.keys, supervisor=self._supervisor))
        except StoreError as failure:
            _log.failure("leadership_release_failed", error=failure)
