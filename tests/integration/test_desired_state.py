"""What the supervisor that leads does to the desired state beside undoing forgeries: what is over goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator.control import scripts
from orchestrator.control.commands import CancelTasks, encode_command, make_command
from orchestrator.control.sending import send
from orchestrator.control.signing import Signer
from orchestrator.control.verification import verify_desired_state
from orchestrator.core.command_record import VERSION, Issued, SlotValue, pack_issued, pack_slot_value
from orchestrator.core.ids import new_task_id
from orchestrator.services import Services, open_services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

SECRET: Final = "the-secret-of-this-pool"
HOUR_MS: Final = 3_600_000


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    """A connection; no supervisor runs."""
    async with open_services(settings, name="test") as opened:
        yield opened


async def give(services: Services, signer: Signer, kind: str, *, ago_ms: int = 0, **values: Any) -> str:
    """Give a command as it was given then; its slot."""
    seconds, micros = await services.store.execute("TIME")
    then_us = int(seconds) * 1_000_000 + int(micros) - ago_ms * 1000
    then_ms = then_us // 1000
    command = make_command(kind, values)
    issued = Issued(VERSION, new_task_id(), encode_command(command), "ann", "", then_ms, then_ms + 60_000, 0)
    packed = pack_issued(issued)
    call = scripts.append(
        services.keys,
        issued=issued,
        packed=packed,
        signature=signer.sign(packed),
        changes=[scripts.ChangeRow(*order) for order in command.changes],
        job=False,
        per_minute=1000,
        token="t",
        now_us=str(then_us),
    )
    assert (await services.store.call(call)).status == "accepted"
    return command.changes[0].slot


async def slots(services: Services) -> set[str]:
    """The fields of the hash but its numbers."""
    return {name.decode() for name in await services.store.execute("HKEYS", services.keys.desired)} - {
        "seq",
        "sessions",
    }


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "signed"])
async def test_orders_for_workers_that_are_gone(services: Services, secret: str) -> None:
    """A command for a worker that nobody knows goes after an hour; one for a worker that lives stays, as do others."""
    signer = Signer(secret, "", services.keys.root)
    await services.store.execute("HSET", services.keys.worker("alive"), "pid", 1, "started_ms", 1)
    await services.store.execute("EXPIRE", services.keys.worker("alive"), 60)
    await give(services, signer, "drain-worker", worker="gone", ago_ms=HOUR_MS + 1000)
    kept = {
        await give(services, signer, "drain-worker", worker="gone-just-now", ago_ms=HOUR_MS - 60_000),
        await give(services, signer, "drain-worker", worker="alive", ago_ms=HOUR_MS + 1000),
        await give(services, signer, "pause-agent", agent="gone", ago_ms=HOUR_MS + 1000),
    }
    for _ in range(2):
        assert set((await verify_desired_state(services.store, signer)).active) == kept
    assert {slot for slot in await slots(services) if not slot.startswith("verified:")} == kept


async def test_a_secret_is_introduced(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    """What was ordered before there was a secret does not count any more, and the log says so."""
    await give(services, Signer("", "", services.keys.root), "stop")
    signer = Signer(SECRET, "", services.keys.root)
    assert (await verify_desired_state(services.store, signer)).active == {}
    assert await slots(services) == set()
    assert "desired_state_forged" in caplog.text


async def test_a_secret_is_given_up(services: Services) -> None:
    """What was ordered with a secret goes on without one; a start ends it, and what was verified of it goes."""
    signer, none = Signer(SECRET, "", services.keys.root), Signer("", "", services.keys.root)
    slot = await give(services, signer, "stop")
    await verify_desired_state(services.store, signer)
    assert set((await verify_desired_state(services.store, none)).active) == {slot}
    await give(services, none, "start")
    assert (await verify_desired_state(services.store, none)).active == {}
    assert await slots(services) == set()


async def test_the_secret_that_signed_is_forgotten(services: Services) -> None:
    """An order signed with a secret that nobody knows any more goes: `orc doctor` warns before."""
    old = Signer("the-secret-before-this", "", services.keys.root)
    await give(services, old, "stop")
    during = Signer(SECRET, old.secret, services.keys.root)
    assert (await verify_desired_state(services.store, during)).active
    after = Signer(SECRET, "", services.keys.root)
    assert (await verify_desired_state(services.store, after)).active == {}
    assert await slots(services) == set()


async def test_two_orders_at_once(services: Services) -> None:
    """Of two true orders the one holds that was accepted last, although it was issued a moment before the other."""
    signer = Signer(SECRET, "", services.keys.root)
    await give(services, signer, "start")
    await verify_desired_state(services.store, signer)
    await give(services, signer, "stop")
    await verify_desired_state(services.store, signer)
    seconds, micros = await services.store.execute("TIME")
    now_us = int(seconds) * 1_000_000 + int(micros)
    command = make_command("start", {})
    before_ms = now_us // 1000 - 2000
    issued = Issued(VERSION, new_task_id(), encode_command(command), "bob", "", before_ms, before_ms + 60_000, 0)
    packed = pack_issued(issued)
    call = scripts.append(
        services.keys, issued=issued, packed=packed, signature=signer.sign(packed),
        changes=[scripts.ChangeRow("stop:all", "")], job=False, per_minute=1000, token="t",
    )  # fmt: skip
    assert (await services.store.call(call)).status == "accepted"
    assert (await verify_desired_state(services.store, signer)).active == {}
    assert await slots(services) == set()


@pytest.mark.parametrize("forged", [b"0-garbage", b"1-" + b"0" * 200, "old start"])
@pytest.mark.parametrize("before", [None, "start", "stop"], ids=str)
async def test_written_over_before_it_was_verified(services: Services, before: str | None, forged: bytes | str) -> None:
    """A stop that somebody writes over at once comes back all the same: the control stream has it."""
    signer = Signer(SECRET, "", services.keys.root)
    if before is not None:
        await give(services, signer, before, ago_ms=5000)
        await verify_desired_state(services.store, signer)
    if isinstance(forged, str):
        await give(services, signer, "start", ago_ms=3000)
        forged = await services.store.execute("HGET", services.keys.desired, "stop:all")
    slot = await give(services, signer, "stop", now=True)
    true = await services.store.execute("HGET", services.keys.desired, slot)
    await services.store.execute("HSET", services.keys.desired, slot, forged)
    assert (await verify_desired_state(services.store, signer)).active[slot].interrupts
    assert await services.store.execute("HGET", services.keys.desired, slot) == true
    # And an end that somebody writes over is an end.
    await give(services, signer, "start")
    await services.store.execute("HSET", services.keys.desired, slot, true if before is None else "1-garbage")
    assert (await verify_desired_state(services.store, signer)).active == {}
    assert await slots(services) == set()


@pytest.mark.parametrize("settings", [{"control__secret": SECRET}], indirect=True)
async def test_a_job_that_was_written_over_is_not_done_again(services: Services) -> None:
    """The stream does not tell whether a job has been done, so nothing of it comes back."""
    signer = Signer(SECRET, "", services.keys.root)
    sent = await send(services.store, services.settings, CancelTasks(count=0))
    assert len((await verify_desired_state(services.store, signer)).jobs) == 1
    await services.store.execute("HDEL", services.keys.desired, f"verified:do:{sent.id}")
    await services.store.execute("HSET", services.keys.desired, f"do:{sent.id}", "1-garbage")
    assert (await verify_desired_state(services.store, signer)).jobs == ()


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "signed"])
async def test_orders_of_a_newer_version(services: Services, secret: str) -> None:
    """What a newer version has ordered stays for those that obey it, while an older one leads; garbage does not."""
    signer = Signer(secret, "", services.keys.root)
    issued = Issued(
        VERSION, new_task_id(), b'{"kind":"quarantine"}', "ann", "", 1_700_000_000_000, 1_700_000_060_000, 0
    )
    found = SlotValue("-", issued, pack_issued(issued), signer.sign(pack_issued(issued)))
    await services.store.execute("HSET", services.keys.desired, "quarantine:agent:ed", pack_slot_value(found))
    await services.store.execute("HSET", services.keys.desired, "stop:all", pack_slot_value(found))
    await services.store.execute("HSET", services.keys.desired, "odd:agent:ed", "1-garbage")
    seen = await verify_desired_state(services.store, signer)
    assert (seen.active, seen.doubtful) == ({}, frozenset())
    assert await slots(services) == {"quarantine:agent:ed"}
