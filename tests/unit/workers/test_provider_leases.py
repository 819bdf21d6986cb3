"""Leases of the calls of providers that run in a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import anyio

from orchestrator.limits.providers import ProviderLimit
from orchestrator.store.keys import PoolKeys
from orchestrator.workers.runtime.provider_calls import ProviderCalls
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.store.calls import Call


class Servers:
    """Answers for some providers; for the others only once those have been asked."""

    def __init__(self, *answering: str) -> None:
        self.answering, self.asked, self.answered = answering, anyio.Event(), anyio.Event()

    async def call(self, call: Call[int]) -> int:
        """Answer a renewal."""
        if call.args["name"] in self.answering:
            self.asked.set()
        else:
            await self.asked.wait()
            self.answered.set()
        return 1


async def test_a_server_that_does_not_answer_keeps_up_no_other_lease() -> None:
    """The renewal of one provider waits for no server of another one: each scope may have its own."""
    servers = Servers("model:late")
    services = cast("Services", SimpleNamespace(store=servers, keys=PoolKeys("test", "pool")))
    calls = ProviderCalls(services, worker="w1")
    calls.lease_ms = 600
    limit = ProviderLimit(at_once=1, shared=True)
    for name in ("model:down", "model:late"):
        calls.add(name, f"call of {name}", limit)
    async with anyio.create_task_group() as running:
        running.start_soon(calls.run)
        with anyio.fail_after(5):
            await servers.asked.wait()
            with anyio.fail_after(0.1):
                await servers.answered.wait()
        running.cancel_scope.cancel()


async def test_a_server_that_never_answers_delays_no_later_renewal() -> None:
    """The renewals of other providers keep their distance while one of them gets no answer."""
    times: list[float] = []

    class OneDown(Servers):
        async def call(self, call: Call[int]) -> int:
            if call.args["name"] == "model:down":
                await anyio.sleep_forever()
            times.append(anyio.current_time())
            return 1

    services = cast("Services", SimpleNamespace(store=OneDown(), keys=PoolKeys("test", "pool")))
    calls = ProviderCalls(services, worker="w1")
    calls.lease_ms = 900
    limit = ProviderLimit(at_once=1, shared=True)
    for name in ("model:down", "model:up"):
        calls.add(name, f"call of {name}", limit)
    async with anyio.create_task_group() as running:
        running.start_soon(calls.run)
        await wait_for(lambda: len(times) == 3, "three renewals")
        running.cancel_scope.cancel()
    # Three renewals per lease: each of them begins 0.3 s behind the one before.
    assert times[2] - times[0] < 0.9
