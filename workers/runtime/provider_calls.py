"""Begins and ends the calls of providers of a worker's attempts, and renews the leases of those that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.ids import new_token
from orchestrator.core.log import get_logger
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit, pack_told
from orchestrator.limits.shared import copy_states, keys_of
from orchestrator.workers.agent import Agent

if TYPE_CHECKING:
    from orchestrator.limits.scripts import BlockReply, CallReply
    from orchestrator.services import Services
    from orchestrator.workers.provider_answers import Told
    from orchestrator.workers.runtime.attempt import Attempt

LEASE_MS: Final = 30_000
"""How long the place of a call stays taken after its worker died."""
RENEWALS: Final = 3
"""Renewals per lease, so that one lost reply does not cost it."""
RENEWED_AT_ONCE: Final = 500
LISTED_S: Final = 60.0
"""How often a worker lists a provider that pools share, and copies its states."""
COPIED_S: Final = 0.5
"""Calls that are refused by a shared provider copy its states no more often than this."""
_log = get_logger(__name__)


class ProviderCalls:
    """The calls of providers that run in one worker.

    Args:
        services: of its pool.
        worker: its id.

    Attributes:
        lease_ms: how long a lease lasts.
    """

    def __init__(self, services: Services, *, worker: str) -> None:
        self.services, self.worker, self.lease_ms = services, worker, LEASE_MS
        self._running: dict[tuple[str, bool], dict[str, int]] = {}
        """Running calls by provider and whether pools share it, each with the calls that may run at a time."""
        self._copied: dict[tuple[str, str], float] = {}
        """When this worker copied the states of a shared provider, by its name and limits."""
        self._begun = anyio.Event()

    def of(self, attempt: Attempt) -> AttemptProviders:
        """Return the gate of one attempt."""
        return AttemptProviders(self, attempt)

    def add(self, name: str, call: str, limit: ProviderLimit) -> None:
        """Renew the lease of a call from now on."""
        self._running.setdefault((name, limit.shared), {})[call] = limit.at_once
        self._begun.set()

    def remove(self, name: str, call: str, limit: ProviderLimit) -> None:
        """Renew the lease of a call no longer."""
        calls = self._running.get((name, limit.shared), {})
        calls.pop(call, None)
        if not calls:
            self._running.pop((name, limit.shared), None)

    async def copy(self, name: str, limit: ProviderLimit, *, older_s: float = 0.0) -> None:
        """List a shared provider and copy its states into the pool, unless this worker did it `older_s` ago or later.

        A failure is logged: the scope decides about calls, and the supervisor copies its states, too.
        """
        now_s = anyio.current_time()
        if older_s and now_s < self._copied.get((name, limit.text), -LISTED_S) + older_s:
            return
        self._copied[name, limit.text] = now_s
        services = self.services
        try:
            await copy_states(services.store, services.keys, name, shown=limit.text)
        except StoreError as failure:
            _log.warning("provider_states_not_copied", provider=name, error=str(failure))

    async def run(self) -> None:
        """Renew leases until cancelled."""
        every_s = self.lease_ms / 1000 / RENEWALS
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            due_s = anyio.current_time() + every_s
            while self._running:
                await anyio.sleep_until(due_s)
                # From now on, so that a renewal that gets no answer keeps up no later one of another provider.
                due_s = anyio.current_time() + every_s
                # Of a cluster, the server of one scope may be down. The leases of other providers must not wait for it.
                async with anyio.create_task_group() as renewals:
                    for provider, calls in self._running.items():
                        held = list(calls.items())
                        for at in range(0, len(held), RENEWED_AT_ONCE):
                            renewals.start_soon(self._renew, provider, held[at : at + RENEWED_AT_ONCE])

    async def _renew(self, provider: tuple[str, bool], calls: list[tuple[str, int]]) -> None:
        name, shared = provider
        keys = keys_of(self.services.keys, name, shared=shared)
        call = scripts.renew(keys, name=name, calls=calls, lease_ms=self.lease_ms)
        try:
            with anyio.fail_after(self.lease_ms / 1000 / RENEWALS):
                renewed = await self.services.store.call(call)
        except (StoreError, TimeoutError) as failure:
            error = str(failure) or "no answer in time"
            _log.warning("provider_leases_not_renewed", provider=name, count=len(calls), error=error)
            return
        running = self._running.get(provider, {})
        if lapsed := max(0, sum(one in running for one, _ in calls) - renewed):
            _log.warning("provider_places_lost", provider=name, count=lapsed)


class AttemptProviders:
    """Begins and ends calls in the name of an attempt; see `ProviderGate`."""

    def __init__(self, calls: ProviderCalls, attempt: Attempt) -> None:
        self._calls, self._attempt, self._services = calls, attempt, calls.services
        self._begun: dict[str, ProviderLimit] = {}
        """The definitions that calls began with, because a reload may change those of the settings."""

    @property
    def attempt(self) -> tuple[str, str]:
        """Task and generation."""
        return self._attempt.delivery.task_id, self._attempt.delivery.generation

    def check(self, name: str, tokens: int) -> None:
        """See `ProviderGate`."""
        limit = self._limit(name)
        if limit.tokens and tokens > limit.tokens:
            raise InvalidInput(
                f"provider {name!r} has {limit.tokens} tokens in a window, and the call reserves {tokens}; "
                "reserve fewer, or raise `tokens` of the limit in the settings"
            )

    def _limit(self, name: str) -> ProviderLimit:
        entry = self._services.settings.limits.get(name)
        if entry is None:
            raise InvalidInput(
                f"provider {name!r} is not defined; add it to the settings of the workers, for example "
                f'[limits."{name}"] requests = "500/min"'
            )
        return ProviderLimit.of(entry)

    @property
    def who(self) -> str:
        """See `ProviderGate`."""
        delivery = self._attempt.delivery
        return f"agent {delivery.agent}, task {delivery.task_id}, worker {self._calls.worker}"

    def _who(self, *, shared: bool) -> str:
        """Return who tells a state, also to operators of other pools."""
        return f"pool {self._services.keys.pool}, {self.who}" if shared else self.who

    @property
    def hides_texts(self) -> bool:
        """See `ProviderGate`."""
        return self._attempt.skill is None or self._attempt.skill.options.redact

    @property
    def lease_s(self) -> float:
        """See `ProviderGate`."""
        return self._calls.lease_ms / 1000

    async def take(self, name: str, call: str, tokens: int) -> CallReply:
        """See `ProviderGate`."""
        store = self._services.store
        await store.require(Feature.PROVIDER_LIMITS)
        limit = self._begun[call] = self._limit(name)
        if limit.shared:
            await self._calls.copy(name, limit, older_s=LISTED_S)
        taken = await store.call(
            scripts.take(
                keys_of(self._services.keys, name, shared=limit.shared),
                name=name,
                call=call,
                tokens=tokens,
                definition=limit,
                lease_ms=self._calls.lease_ms,
                by=self._who(shared=limit.shared),
            ),
            retry_for_s=self._services.settings.redis.command_timeout_s,
        )
        if taken.status is scripts.CallStatus.TAKEN:
            self._calls.add(name, call, limit)
            return taken
        del self._begun[call]  # nothing to settle
        if limit.shared and taken.status is scripts.CallStatus.BLOCKED:
            await self._calls.copy(name, limit, older_s=COPIED_S)
        return taken

    async def settle(self, name: str, call: str, used: int, outcome: str, reason: str) -> None:
        """See `ProviderGate`."""
        limit = self._begun.pop(call, None)
        if limit is None:
            return  # nothing was sent
        self._calls.remove(name, call, limit)
        settled = await self._services.store.call(
            scripts.settle(
                keys_of(self._services.keys, name, shared=limit.shared),
                name=name,
                call=call,
                used=used,
                tokens_us=limit.tokens_us,
                outcome=outcome,
                told=pack_told(self._who(shared=limit.shared), reason),
                shared=limit.shared,
            ),
            retry_for_s=self._services.settings.redis.command_timeout_s,
        )
        if settled.broken_ms:
            self._log_block(name, "broken", settled.broken_ms, reason)
        if limit.shared and (settled.broken_ms or settled.status is scripts.SettleStatus.REOPENED):
            await self._calls.copy(name, limit)

    async def block(self, name: str, told: Told) -> BlockReply:
        """See `ProviderGate`."""
        entry = self._services.settings.limits.get(name)
        limit = ProviderLimit() if entry is None else ProviderLimit.of(entry)
        call = scripts.block(
            keys_of(self._services.keys, name, shared=limit.shared),
            name=name,
            state=told.state,
            told=pack_told(self._who(shared=limit.shared), told.reason),
            for_ms=told.for_ms,
            until_ms=told.until_ms,
        )
        blocked = await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
        if not blocked.has_passed:
            self._log_block(name, told.state, blocked.until_ms, told.reason)
        if limit.shared:
            await self._calls.copy(name, limit)
        return blocked

    def _log_block(self, name: str, state: str, until_ms: int, reason: str) -> None:
        _log.warning(
            "provider_blocked",
            provider=name,
            state=state,
            until_ms=until_ms,
            reason=reason,
            task=self._attempt.delivery.task_id,
        )

    def new_call(self) -> str:
        """See `ProviderGate`."""
        return new_token()

    def holds_tasks(self, name: str) -> bool:
        """See `ProviderGate`."""
        owner = self._attempt.skill.owner if self._attempt.skill is not None else None
        return isinstance(owner, Agent) and name in owner.limits
