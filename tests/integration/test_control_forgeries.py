"""Commands that nobody with the secret has given: refused and recorded, and nothing of them is obeyed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from msgspec.structs import replace as changed
from pydantic import SecretStr

from orchestrator import Agent
from orchestrator.agents import scripts as registry
from orchestrator.agents.key_names import read_key_names
from orchestrator.agents.model import AgentSpec
from orchestrator.agents.queries import worker_ids
from orchestrator.agents.registrations import SIGNATURE, read_forged
from orchestrator.client.admin import Sent
from orchestrator.control import scripts
from orchestrator.control.commands import CancelTasks, encode_command, make_command
from orchestrator.control.desired import ActiveCommand, is_signed, read_desired
from orchestrator.control.receipts import Receipts, poll
from orchestrator.control.records import ControlRecord, desired, records
from orchestrator.control.sending import send
from orchestrator.control.signing import Signer, signer_of
from orchestrator.control.verification import correct_rate, read_signed_stream, verify_desired_state
from orchestrator.core.command_record import VERSION, Issued, pack_issued, unpack_issued
from orchestrator.core.errors import CommandRefused, ConfigError
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT
from orchestrator.core.ids import new_task_id, new_worker_id
from orchestrator.core.settings import Settings  # noqa: TC001 - pydantic resolves it
from orchestrator.core.wakeups import Wakeup
from orchestrator.doctor.active_commands import check_key_names
from orchestrator.doctor.context import CheckContext
from orchestrator.services import Services, open_services
from orchestrator.store.server_info import read_info
from orchestrator.supervisor.controller import Controller
from orchestrator.supervisor.jobs import Jobs
from orchestrator.supervisor.registration_check import RegistrationCheck
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.helpers.local_team import LocalTeam

SECRET: Final = "canary-of-the-control-secret"
WITHIN_S: Final = 20.0
"""Longer than a heartbeat."""
PREVIOUS: Final = "canary-of-the-secret-before"

signed = pytest.mark.parametrize("settings", [{"control__secret": SECRET}], indirect=True)


@dataclass
class Pool:
    """A pool whose commands are signed, and what an intruder can do who reaches its Redis but lacks the secret."""

    team: LocalTeam
    runs: int = 0

    def __post_init__(self) -> None:
        self.store, self.keys = self.team.services.store, self.team.services.keys
        self.signer = signer_of(self.team.settings, place=self.keys.root)

    async def work(self) -> None:
        """Start a worker that counts what it runs."""
        agent = Agent("ed")

        @agent.skill
        async def sum_() -> None:
            self.runs += 1

        await self.team.work(agent)

    async def now_ms(self) -> int:
        """The server's time."""
        seconds, micros = await self.store.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def issue(self, kind: str, *, signer: Signer | None = None, **values: Any) -> tuple[Issued, bytes, str]:
        """A command as somebody would sign it now, given to nobody."""
        now_ms = await self.now_ms()
        command = encode_command(make_command(kind, values))
        issued = Issued(VERSION, new_task_id(), command, "eve@desk", "", now_ms, now_ms + 60_000, 0)
        return issued, pack_issued(issued), (signer or self.signer).sign(pack_issued(issued))

    async def put(self, packed: bytes, signature: str | bytes) -> str:
        """Write past the script into the stream."""
        entry: bytes = await self.store.execute("XADD", self.keys.control, "*", "c", packed, "s", signature)
        return entry.decode()

    async def push(
        self, issued: Issued, packed: bytes, signature: str, *, order: tuple[str, str], id_: str | None = None
    ) -> str:
        """Send through the script, as if this were a command that orders such a thing."""
        call = scripts.append(
            self.keys,
            issued=changed(issued, id=id_ or issued.id),
            packed=packed,
            signature=signature,
            changes=[scripts.ChangeRow(*order)],
            job=False,
            per_minute=10**6,
            token=new_task_id(),
        )
        return (await self.store.call(call)).status

    async def last(self) -> tuple[bytes, bytes]:
        """The command that was given last, and its signature."""
        ((_, fields),) = await self.store.execute("XREVRANGE", self.keys.control, "+", "-", "COUNT", 1)
        return fields[1], fields[3]

    async def standing(self) -> set[str]:
        """What is active."""
        return set(read_desired(await self.store.execute("HGETALL", self.keys.desired), self.signer).active)

    async def slots(self) -> dict[str, bytes]:
        """What stands in the slots, as the scripts see it."""
        flat = await self.store.execute("HGETALL", self.keys.desired)
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    async def refused(self) -> list[ControlRecord]:
        """What `orc control list --refused` shows."""
        return await records(self.store, self.signer, limit=2000, wanted=lambda record: record.state == "refused")

    async def settled(self, slot: str, *, filled: bool) -> None:
        """Wait until the supervisor has judged a slot: it holds a verified order, or none."""

        async def judged() -> bool:
            slots = await self.slots()
            return slots.get(slot) == slots.get(f"verified:{slot}") and (slot in slots) is filled

        await wait_for(judged, f"the verdict on {slot}")

    async def recorded(self, count: int) -> list[ControlRecord]:
        """Wait until so many are recorded as refused, in the stream of those."""

        async def there() -> bool:
            return bool(await self.store.execute("XLEN", self.keys.refused_control) >= count)

        await wait_for(there, f"{count} refused commands")
        return await self.refused()

    async def stop(self) -> None:
        """Stop everything, and leave a task waiting."""
        sent = await self.team.orc.admin.stop(reason="for a test")
        assert (await sent.receipts(timeout=TIMEOUT_S)).complete
        await self.settled("stop:all", filled=True)
        await self.team.orc.submit("sum_")

    async def assert_still_stopped(self) -> None:
        """Nothing ran, for those who look and for the scripts."""
        await self.settled("stop:all", filled=True)
        assert await self.standing() == {"stop:all"}
        assert self.runs == 0

    async def start(self) -> None:
        """The twin: who has the secret ends the stop, and the task runs."""
        await self.team.orc.admin.start()
        await wait_for(lambda: _true(self.runs == 1), "the task to run")


async def _true(value: bool) -> bool:  # noqa: FBT001
    return value


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    """A connection; no process runs."""
    async with open_services(settings, name="test") as opened:
        yield opened


@pytest.fixture
async def pool(team: LocalTeam) -> Pool:
    """A signed pool with a worker."""
    made = Pool(team)
    await made.work()
    return made


def flipped(data: bytes) -> list[bytes]:
    """The same with each byte changed in turn."""
    return [data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :] for at in range(len(data))]


# ---------------------------------------------------------------------------------------------------- past the script


@signed
async def test_each_byte_flipped_in_the_stream(pool: Pool) -> None:
    """Whichever byte of a signed start or of its signature is changed: refused, each recorded, nothing obeyed."""
    await pool.stop()
    _, packed, signature = await pool.issue("start")
    forged = [(each, signature.encode()) for each in flipped(packed)]
    forged += [(packed, each) for each in flipped(signature.encode())]
    for each in forged:
        await pool.put(*each)
    found = await pool.recorded(len(forged))
    assert len(found) == len(forged)
    assert all(_unreadable(record) or record.problem == "its signature is invalid" for record in found)
    await pool.assert_still_stopped()
    await pool.start()


def _unreadable(record: ControlRecord) -> bool:
    return record.words == "(unreadable)" and record.problem.startswith(
        ("not a control command", "a control command of")
    )


@signed
async def test_a_true_command_past_the_script_is_received(pool: Pool) -> None:
    """The twin: unchanged it is no forgery, though it orders nothing, for the state does not say so."""
    await pool.stop()
    issued, packed, signature = await pool.issue("start")
    await pool.put(packed, signature)
    await wait_for(lambda: _has_receipt(pool, issued.id), "its receipt")
    assert await pool.refused() == []
    await pool.assert_still_stopped()


async def _has_receipt(pool: Pool, id_: str) -> bool:
    return bool(await pool.store.execute("HEXISTS", pool.keys.receipts(id_), "supervisor"))


@signed
async def test_replayed_in_the_stream(pool: Pool) -> None:
    """The same entry again is refused, and the receipts of the first stay what they were."""
    sent = await pool.team.orc.admin.start()
    assert (await sent.receipts(timeout=TIMEOUT_S)).complete
    packed, signature = await pool.last()
    await pool.stop()
    before = await pool.store.execute("HGETALL", pool.keys.receipts(sent.id))
    await pool.put(packed, signature)
    (refused,) = await pool.recorded(1)
    assert (refused.id, refused.problem, refused.kind) == (sent.id, "it was given before", "start")
    assert await pool.store.execute("HGETALL", pool.keys.receipts(sent.id)) == before
    await pool.assert_still_stopped()


@signed
@pytest.mark.parametrize(
    ("since_ms", "until_ms", "problem"),
    [
        (-120_000, -60_000, "it arrived too late"),
        (6_500, 66_500, "its time of issue is in the future"),
        (-1_000, 60_000, ""),
        (3_500, 66_500, ""),
    ],
    ids=["backdated", "future-dated", "twin", "twin within the skew"],
)
async def test_time_in_the_stream(pool: Pool, since_ms: int, until_ms: int, problem: str) -> None:
    """A command of another time is refused although its signature is true."""
    issued, _, _ = await pool.issue("start")
    now_ms = issued.issued_ms
    packed = pack_issued(changed(issued, issued_ms=now_ms + since_ms, not_after_ms=now_ms + until_ms))
    await pool.put(packed, pool.signer.sign(packed))
    if problem:
        assert [record.problem for record in await pool.recorded(1)] == [problem]
    else:
        await wait_for(lambda: _has_receipt(pool, issued.id), "its receipt")
        assert await pool.refused() == []


@signed
async def test_unknown_kind(pool: Pool) -> None:
    """A command of a newer version, truly signed, is refused as unknown."""
    issued, _, _ = await pool.issue("start")
    packed = pack_issued(changed(issued, command=b'{"kind":"explode","url":"http://evil"}'))
    await pool.put(packed, pool.signer.sign(packed))
    (refused,) = await pool.recorded(1)
    assert refused.problem.startswith("not a command: ")


@signed
@pytest.mark.parametrize("who", ["another key", "another pool", "nobody"])
async def test_signed_by_others(pool: Pool, who: str) -> None:
    """Neither a wrong key counts, nor the right one of another pool, nor none."""
    await pool.stop()
    signers = {
        "another key": Signer("the-secret-of-somebody-else", "", pool.keys.root),
        "another pool": replace(pool.signer, place=pool.keys.root.replace("{pool:", "{pool:x")),
        "nobody": Signer("", "", pool.keys.root),
    }
    issued, packed, signature = await pool.issue("start", signer=signers[who])
    await pool.put(packed, signature)
    assert [record.problem for record in await pool.recorded(1)] == [
        "it is not signed" if who == "nobody" else "its signature is invalid"
    ]
    assert await pool.push(issued, packed, signature, order=("stop:all", "")) == "accepted"
    await pool.recorded(2)
    await pool.assert_still_stopped()
    await pool.start()


# -------------------------------------------------------------------------------------------------- through the script


@signed
async def test_each_byte_flipped_through_the_script(pool: Pool) -> None:
    """The script cannot check signatures, so the state changes; the supervisor undoes it, and no worker obeys."""
    await pool.stop()
    issued, packed, signature = await pool.issue("start")
    forged = [(each, signature) for each in flipped(packed)]
    forged += [(packed, each.decode("latin-1")) for each in flipped(signature.encode())]
    for each, its in forged:
        status = await pool.push(issued, each, its, order=("stop:all", ""), id_=new_task_id())
        assert status == "accepted"
        assert await pool.standing() == {"stop:all"}
    await pool.recorded(len(forged))
    await pool.assert_still_stopped()
    await pool.start()


@signed
async def test_replayed_through_the_script(pool: Pool) -> None:
    """The same command with its own id is refused at once; with another id by all who read it."""
    sent = await pool.team.orc.admin.start()
    await sent.receipts(timeout=TIMEOUT_S)
    packed, signature = await pool.last()
    issued = unpack_issued(packed)
    await pool.stop()
    assert await pool.push(issued, packed, signature.decode(), order=("stop:all", "")) == "replayed"
    status = await pool.push(issued, packed, signature.decode(), order=("stop:all", ""), id_=new_task_id())
    assert status == "accepted"
    found = await pool.recorded(2)
    assert {record.problem for record in found} == {"it was given before"}
    await pool.assert_still_stopped()
    await pool.start()


@signed
async def test_two_issuers_with_one_id(pool: Pool) -> None:
    """The first one counts, whether the second comes through the script or past it."""
    first, packed, signature = await pool.issue("pause-agent", agent="ed")
    assert await pool.push(first, packed, signature, order=("pause:agent:ed", "-")) == "accepted"
    second = changed(first, command=encode_command(make_command("stop", {})), actor="bob@desk")
    packed = pack_issued(second)
    signature = pool.signer.sign(packed)
    assert await pool.push(second, packed, signature, order=("stop:all", "-")) == "replayed"
    await pool.put(packed, signature)
    found = await pool.recorded(2)
    assert {(record.actor, record.problem) for record in found} == {("bob@desk", "it was given before")}
    assert await pool.standing() == {"pause:agent:ed"}


@signed
async def test_swapped_target(pool: Pool) -> None:
    """A true command counts for what it names, wherever somebody writes it."""
    issued, packed, signature = await pool.issue("pause-agent", agent="other")
    assert await pool.push(issued, packed, signature, order=("pause:agent:ed", "-")) == "accepted"
    await pool.settled("pause:agent:ed", filled=False)
    assert await pool.standing() == set()
    swapped = pack_issued(changed(issued, command=encode_command(make_command("pause-agent", {"agent": "ed"}))))
    await pool.push(issued, swapped, signature, order=("pause:agent:ed", "-"), id_=new_task_id())
    await pool.settled("pause:agent:ed", filled=False)
    assert (await pool.recorded(1))[0].problem == "its signature is invalid"
    await pool.team.orc.submit("sum_")
    await wait_for(lambda: _true(pool.runs == 1), "the agent to work on")


@signed
async def test_time_through_the_script(pool: Pool) -> None:
    """What is backdated or comes from the future is refused at once, and recorded."""
    issued, _, _ = await pool.issue("start")
    now_ms = issued.issued_ms
    for since_ms, until_ms, status in ((-120_000, -60_000, "expired"), (6_500, 66_500, "early")):
        late = changed(issued, id=new_task_id(), issued_ms=now_ms + since_ms, not_after_ms=now_ms + until_ms)
        packed = pack_issued(late)
        assert await pool.push(late, packed, pool.signer.sign(packed), order=("stop:all", "")) == status
    assert {record.problem for record in await pool.recorded(2)} == {
        "it arrived too late",
        "its time of issue is in the future",
    }


# ----------------------------------------------------------------------------------------------------- into the state


@signed
@pytest.mark.parametrize("action", ["removed", "garbage", "unsigned start", "old start"])
async def test_a_stop_outlives_what_is_written_over_it(pool: Pool, action: str) -> None:
    """Whatever somebody writes into the slot of a stop: the stop comes back, and nothing runs meanwhile."""
    await pool.team.orc.admin.start()
    old, signature = await pool.last()
    unsigned = (await pool.issue("start", signer=Signer("", "", pool.keys.root)))[1]
    await pool.stop()
    values = {
        "garbage": b"0-" + b"\xff" * 100,
        "unsigned start": b"0-" + b" " * 64 + unsigned,
        "old start": b"0-" + signature.ljust(64) + old,
    }
    if action == "removed":
        await pool.store.execute("HDEL", pool.keys.desired, "stop:all")
    else:
        await pool.store.execute("HSET", pool.keys.desired, "stop:all", values[action])
    await _look_again(pool)
    await pool.assert_still_stopped()
    await pool.start()


@signed
@pytest.mark.parametrize("action", ["garbage", "unsigned", "old", "both"])
async def test_a_forged_stop_goes_away(pool: Pool, action: str) -> None:
    """What nobody ordered stops nobody for longer than until the supervisor looks, also a stop of earlier days."""
    await pool.team.orc.admin.stop()
    old, signature = await pool.last()
    await pool.team.orc.admin.start()
    await pool.settled("stop:all", filled=False)
    unsigned = (await pool.issue("stop", signer=Signer("", "", pool.keys.root)))[1]
    value = {
        "garbage": b"1-garbage",
        "unsigned": b"1-" + b" " * 64 + unsigned,
        "old": b"1-" + signature.ljust(64) + old,
        "both": b"1-" + b"0" * 64 + old,
    }[action]
    await pool.store.execute("HSET", pool.keys.desired, "stop:all", value)
    if action == "both":
        await pool.store.execute("HSET", pool.keys.desired, "verified:stop:all", value)
    await _look_again(pool)
    await pool.settled("stop:all", filled=False)
    await pool.team.orc.submit("sum_")
    await wait_for(lambda: _true(pool.runs == 1), "the task to run")


@signed
async def test_the_count_of_stopped_sessions_is_repaired(pool: Pool) -> None:
    """Whoever sets it to 0 so that no gate looks at sessions finds it repaired."""
    await pool.team.orc.admin.stop(session="s")
    await pool.store.execute("HSET", pool.keys.desired, "sessions", "0")
    await _look_again(pool)

    async def repaired() -> bool:
        return (await pool.slots())["sessions"] == b"1"

    await wait_for(repaired, "the count")


@signed
async def test_a_job_is_done_once(pool: Pool) -> None:
    """A job that was done does not come back from what was verified of it."""
    sent = await pool.team.orc.admin.cancel([new_task_id()])
    assert (await sent.receipts(timeout=TIMEOUT_S)).done
    await _look_again(pool)
    assert await pool.slots() == {"seq": (await pool.slots())["seq"]}


async def _look_again(pool: Pool) -> None:
    """Let the supervisor look now, not with its next sweep: it does with every command."""
    sent = await pool.team.orc.admin.reset_log_level()
    await sent.receipts(timeout=TIMEOUT_S)


@signed
@pytest.mark.parametrize("stream", ["kept", "entry deleted", "deleted", "replaced"])
async def test_a_stop_outlives_its_deletion(pool: Pool, stream: str) -> None:
    """A stop whose slot, proof and revision somebody deletes comes back, also if the stream lost it."""
    await pool.team.orc.admin.start()
    old = await pool.last()
    ((old_entry, _),) = await pool.store.execute("XREVRANGE", pool.keys.control, "+", "-", "COUNT", 1)
    await pool.stop()
    await pool.store.execute("HDEL", pool.keys.desired, "stop:all", "verified:stop:all")
    await pool.store.execute("HDEL", pool.keys.desired_revisions, "stop:all")
    if stream == "entry deleted":
        ((entry, _),) = await pool.store.execute("XREVRANGE", pool.keys.control, "+", "-", "COUNT", 1)
        await pool.store.execute("XDEL", pool.keys.control, entry)
    if stream in {"deleted", "replaced"}:
        await pool.store.execute("DEL", pool.keys.control)
    if stream == "replaced":
        await pool.store.execute("XADD", pool.keys.control, old_entry, "c", old[0], "s", old[1])
    await _look_again(pool)
    await pool.assert_still_stopped()
    await pool.start()


@signed
async def test_a_deleted_stop_is_found_by_the_next_leader(services: Services) -> None:
    """A supervisor that begins to lead compares the desired state, and the epoch, with the signed stream."""
    signer = signer_of(services.settings, place=services.keys.root)
    await send(services.store, services.settings, make_command("renew-epoch", {}))
    stop = await send(services.store, services.settings, make_command("stop", {}))
    pause = await send(services.store, services.settings, make_command("pause-agent", {"agent": "ed"}))
    await send(services.store, services.settings, make_command("resume-agent", {"agent": "ed"}))
    await verify_desired_state(services.store, signer)
    await services.store.execute("DEL", services.keys.desired)
    async with anyio.create_task_group() as group:
        group.start_soon(Controller(services, jobs=Jobs(services)).run)

        async def restored() -> bool:
            found = await desired(services.store, signer)
            return found.epoch == 1 and {one.issued.id for one in found.active.values()} == {stop.id}

        await wait_for(restored, "the stop and the epoch")
        group.cancel_scope.cancel()
    assert pause.id != stop.id


@signed
async def test_the_end_of_a_pause_is_no_deletion(services: Services) -> None:
    """What ended by itself does not come back: a pause at its end, a drain with its worker."""
    signer = signer_of(services.settings, place=services.keys.root)
    await send(services.store, services.settings, make_command("hold-agent", {"agent": "ed", "for_s": 0.1}))
    await send(services.store, services.settings, make_command("drain-worker", {"worker": "w"}))
    found = await read_signed_stream(services.store, signer)
    assert set(found.active) == {"hold:agent:ed", "drain:worker:w"}
    await services.store.execute("DEL", services.keys.desired)
    until_ms = ActiveCommand("hold:agent:ed", "-", found.active["hold:agent:ed"].issued).until_ms or 0

    async def over() -> bool:
        return int((await services.store.execute("TIME"))[0]) * 1000 >= until_ms

    await wait_for(over, "the end of the pause")
    assert (await verify_desired_state(services.store, signer, expected=found.active)).active == {}
    # The twin: the worker lives.
    await services.store.execute("HSET", services.keys.worker("w"), "pid", 1)
    await services.store.execute("EXPIRE", services.keys.worker("w"), 60)
    assert set((await verify_desired_state(services.store, signer, expected=found.active)).active) == {"drain:worker:w"}


@signed
async def test_a_reset_epoch(pool: Pool) -> None:
    """Somebody who resets the epoch so that old commands count again finds it restored."""
    await send(pool.store, pool.team.settings, make_command("renew-epoch", {}))
    await _look_again(pool)
    await pool.store.execute("HSET", pool.keys.desired, "epoch", 0)
    await _look_again(pool)

    async def restored() -> bool:
        return (await pool.slots())["epoch"] == b"1"

    await wait_for(restored, "the epoch")


@pytest.mark.parametrize(
    "settings", [{"control__secret": SECRET, "control__per_minute": 20}], indirect=True, ids=["signed"]
)
@pytest.mark.parametrize("how", ["written", "unsigned commands"])
async def test_a_filled_rate_counter(services: Services, how: str) -> None:
    """Somebody who uses up the commands of the minute holds signed ones back until the supervisor looks."""
    signer = signer_of(services.settings, place=services.keys.root)
    pause = make_command("pause-agent", {"agent": "ed"})
    per_minute = services.settings.control.per_minute

    async def within_a_minute() -> bool:
        return int((await services.store.execute("TIME"))[0]) % 60 < 50

    async def fill() -> None:
        minute = int((await services.store.execute("TIME"))[0]) // 60
        await services.store.execute("SET", services.keys.control_rate(minute), 10**9, "EX", 120)

    await wait_for(within_a_minute, "a minute that does not end soon", 15)
    await send(services.store, services.settings, make_command("stop", {}))
    if how == "written":
        await fill()
        with pytest.raises(CommandRefused):
            await send(services.store, services.settings, pause)
    else:
        control = services.settings.control.model_copy(update={"secret": None})
        unsigned = services.settings.model_copy(update={"control": control})
        for _ in range(per_minute - 1):
            await send(services.store, unsigned, pause)
        with pytest.raises(CommandRefused):
            await send(services.store, unsigned, pause)
    assert await correct_rate(services.store, signer, per_minute=per_minute)
    await send(services.store, services.settings, pause)
    # The twins: true commands stay counted, and without a secret nothing is corrected.
    assert not await correct_rate(services.store, signer, per_minute=2)
    await fill()
    assert not await correct_rate(services.store, Signer("", "", services.keys.root), per_minute=per_minute)


@signed
async def test_a_count_of_another_type(services: Services) -> None:
    """It counts as none: commands are accepted, and the supervisor goes on."""
    signer = signer_of(services.settings, place=services.keys.root)
    minute = int((await services.store.execute("TIME"))[0]) // 60
    keys = [services.keys.control_rate(minute + later) for later in range(2)]
    for key in keys:
        await services.store.execute("HSET", key, "x", "1")
        await services.store.execute("EXPIRE", key, 60)
    assert not await correct_rate(services.store, signer, per_minute=1)
    await send(services.store, services.settings, make_command("stop", {}))
    await services.store.execute("DEL", *keys)


@signed
@pytest.mark.parametrize("named", ["no entry", "another command", "garbage"])
async def test_a_forged_nonce_hides_no_command(services: Services, named: str) -> None:
    """Each client may write nonces: they neither undo a stop nor revive one that has ended."""
    store, keys, signer = services.store, services.keys, signer_of(services.settings, place=services.keys.root)
    other = await send(store, services.settings, make_command("pause-agent", {"agent": "ed"}))
    nonce = {"no entry": "0-1 x", "another command": f"{other.entry} x", "garbage": "x"}[named]
    stop = await send(store, services.settings, make_command("stop", {}))
    await store.execute("SET", keys.nonce(stop.id), nonce, "EX", 60)
    assert "stop:all" in (await verify_desired_state(store, signer)).active
    start = await send(store, services.settings, make_command("start", {}))
    await store.execute("SET", keys.nonce(start.id), nonce, "EX", 60)
    assert "stop:all" not in (await verify_desired_state(store, signer)).active
    assert set((await read_signed_stream(store, signer)).active) == {"pause:agent:ed"}


@signed
@pytest.mark.parametrize("stream", ["kept", "deleted"])
async def test_an_older_command_over_slot_and_proof(services: Services, stream: str) -> None:
    """A signed start of earlier, copied to a stop and its verified copy, does not end the stop."""
    store, keys, signer = services.store, services.keys, signer_of(services.settings, place=services.keys.root)
    await send(store, services.settings, make_command("start", {}))
    ((_, fields),) = await store.execute("XREVRANGE", keys.control, "+", "-", "COUNT", 1)

    async def later() -> bool:
        seconds, micros = await store.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000 > unpack_issued(fields[1]).issued_ms

    await wait_for(later, "the next millisecond")
    await send(store, services.settings, make_command("stop", {}))
    await verify_desired_state(store, signer)
    expected = (await read_signed_stream(store, signer)).active
    old = b"0-" + fields[3].ljust(64) + fields[1]
    await store.execute("HSET", keys.desired, "stop:all", old, "verified:stop:all", old)
    if stream == "deleted":
        await store.execute("DEL", keys.control)
    # The twin: what this supervisor does not know, it cannot restore.
    assert (await verify_desired_state(store, signer)).active == {}
    found = await verify_desired_state(store, signer, expected=expected)
    assert set(found.active) == {"stop:all"}
    # It is restored once, and a newer start ends it.
    assert (await verify_desired_state(store, signer, expected=expected)).seq == found.seq
    await send(store, services.settings, make_command("start", {}))
    assert (await verify_desired_state(store, signer, expected=expected)).active == {}
    assert (await verify_desired_state(store, signer)).active == {}


@signed
async def test_damaged_held_tasks_keep_no_others(pool: Pool) -> None:
    """A scope of held tasks whose key has another type does not keep the tasks of an ended stop."""
    await pool.team.orc.admin.stop(session="s")
    damaged = [f"skill:damaged{number}" for number in range(5)]
    for scope in damaged:
        await pool.store.execute("SET", f"{pool.keys.suspended_scopes}:{scope}", "x", "EX", 60)
    await pool.store.execute("SADD", pool.keys.suspended_scopes, *damaged)
    await pool.team.orc.submit("sum_", session="s")

    async def held() -> bool:
        return bool(await pool.store.execute("SISMEMBER", pool.keys.suspended_scopes, "session:s"))

    await wait_for(held, "the task to be held")
    await pool.team.orc.admin.start(session="s")
    await wait_for(lambda: _true(pool.runs == 1), "the task to run")
    await pool.store.execute("DEL", *[f"{pool.keys.suspended_scopes}:{scope}" for scope in damaged])
    await pool.store.execute("SREM", pool.keys.suspended_scopes, *damaged)


async def test_a_supervisor_without_a_secret(team: LocalTeam) -> None:
    """It stops leading when signed commands stand, carries out no unsigned start, and leads again without them."""
    signer = Signer(SECRET, "", team.services.keys.root)
    store, keys = team.services.store, team.services.keys

    async def leads() -> bool:
        return await store.execute("GET", keys.leader) is not None

    await wait_for(leads, "the supervisor to lead")
    secret = await team.client(control__secret=SECRET)
    await secret.admin.stop(reason="signed")
    await wait_for(_not(leads), "the supervisor to resign")
    # The unsigned start takes the slot away; the proof of a supervisor with the secret stays.
    await verify_desired_state(store, signer)
    await team.orc.admin.start()
    assert is_signed(await store.execute("HGETALL", keys.desired))
    await team.services.store.call(scripts.receipt(keys, rows=[]))
    assert not await leads()
    # Who has the secret leads, and restores the stop.
    assert set((await verify_desired_state(store, signer)).active) == {"stop:all"}
    await secret.admin.start()
    await verify_desired_state(store, signer)
    await wait_for(leads, "the supervisor to lead again", 10)


def _not(condition: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    async def negated() -> bool:
        return not await condition()

    return negated


# ---------------------------------------------------------------------------------------------------------- rotation


@pytest.mark.parametrize("settings", [{"control__secret": SECRET, "control__previous_secret": PREVIOUS}], indirect=True)
async def test_rotation(pool: Pool) -> None:
    """While both secrets are known, a command of the old one is obeyed as one of the new one is."""
    old = await pool.team.client(control__secret=PREVIOUS)
    sent = await old.admin.stop(reason="with the old one")
    found = await sent.receipts(timeout=TIMEOUT_S)
    assert found.complete
    assert {receipt.word for receipt in found.answered} == {"done"}
    await pool.settled("stop:all", filled=True)
    assert await pool.refused() == []
    await pool.team.orc.admin.start()
    await pool.settled("stop:all", filled=False)


@signed
async def test_after_the_rotation(pool: Pool) -> None:
    """The twin: with the new one alone, a command of the old one is refused, and its sender cannot verify that."""
    old = await pool.team.client(control__secret=PREVIOUS)
    sent = await old.admin.stop(reason="with the old one")
    found = await sent.receipts(timeout=TIMEOUT_S)
    assert {receipt.word for receipt in found.forged} == {"refused"}
    assert found.answered == ()
    assert not found.complete
    await pool.settled("stop:all", filled=False)
    (refused,) = await pool.recorded(1)
    assert (refused.id, refused.problem) == (sent.id, "its signature is invalid")


# ---------------------------------------------------------------------------------------------------------- receipts


async def _forge(pool: Pool, id_: str, sender: str, *, signature: str = "") -> None:
    now_ms = await pool.now_ms()
    fields = [sender, f"{now_ms} done "] + ([f"~{sender}", signature] if signature else [])
    await pool.store.execute("HSET", pool.keys.receipts(id_), *fields)
    await pool.store.execute("EXPIRE", pool.keys.receipts(id_), 60)


@pytest.mark.parametrize("signature", ["", "0" * 64, "another command"])
async def test_forged_receipts_do_not_count(services: Services, signature: str) -> None:
    """A worker that answers nothing is missing, whatever somebody writes into its receipt."""
    signer = Signer(SECRET, "", services.keys.root)
    await services.store.execute("ZADD", services.keys.workers, 1, "w1")
    await services.store.execute("HSET", services.keys.worker("w1"), "started_ms", 1)
    await services.store.execute("EXPIRE", services.keys.worker("w1"), 60)
    if signature == "another command":
        signature = signer.sign_receipt("other", "w1", "done", "")
    fields = ["w1", "1700000000000 done "] + (["~w1", signature] if signature else [])
    await services.store.execute("HSET", services.keys.receipts("c"), *fields)
    await services.store.execute("EXPIRE", services.keys.receipts("c"), 60)
    stop = make_command("stop", {})
    found = await poll(services.store, "c", stop, at=datetime.now(UTC), signer=signer)
    assert (found.answered, found.missing) == ((), ("w1",))
    assert [receipt.sender for receipt in found.forged] == ["w1"]
    # The twins: its own receipt replaces the forged one, and without a secret each receipt counts.
    assert (await poll(services.store, "c", stop, at=datetime.now(UTC), signer=replace(signer, secret=""))).complete
    await services.store.call(
        scripts.receipt(services.keys, rows=[scripts.ReceiptRow("c", "w1", "done")], signer=signer)
    )
    assert (await poll(services.store, "c", stop, at=datetime.now(UTC), signer=signer)).done


@signed
async def test_a_forged_receipt_hides_no_answer(pool: Pool) -> None:
    """Receipts from before the processes answered are replaced; those of strangers are shown as forged."""
    issued, packed, signature = await pool.issue("stop")
    for sender in ("supervisor", "stranger"):
        await _forge(pool, issued.id, sender)
    assert await pool.push(issued, packed, signature, order=("stop:all", "-")) == "accepted"
    sent = Sent(issued.id, make_command("stop", {}), datetime.now(UTC), lambda: pool.team.services)
    found = await wait_for_receipts(sent)
    assert found.done
    assert [receipt.sender for receipt in found.forged] == ["stranger"]


async def wait_for_receipts(sent: Sent) -> Receipts:
    """Wait until the worker and the supervisor are done."""

    async def answered() -> bool:
        return len((await sent.receipts(timeout=TIMEOUT_S)).answered) == 2

    await wait_for(answered, "both receipts")
    return await sent.receipts()


@signed
async def test_forged_progress_of_a_job(pool: Pool) -> None:
    """A job does all its tasks although somebody writes that they are done."""
    await pool.stop()
    task = await pool.team.orc.submit("sum_")
    sent = await _job_with_progress(pool, task.id)
    found = await sent.receipts(timeout=TIMEOUT_S)
    assert [receipt.detail for receipt in found.answered if receipt.sender == "supervisor"] == ["1 cancelled"]


async def _job_with_progress(pool: Pool, task: str) -> Sent:
    issued, _, _ = await pool.issue("start")
    command = CancelTasks(count=0).selecting([task])
    issued = changed(issued, command=encode_command(command))
    packed = pack_issued(issued)
    await _forge(pool, issued.id, "supervisor")
    await pool.store.execute(
        "HSET", pool.keys.receipts(issued.id), "supervisor", "1700000000000 progress 1/1 1 unknown"
    )
    await pool.store.call(scripts.select(pool.keys, id_=issued.id, at=0, tasks=[task]))
    call = scripts.append(
        pool.keys, issued=issued, packed=packed, signature=pool.signer.sign(packed), changes=[], job=True,
        per_minute=1000, token="t",
    )  # fmt: skip
    assert (await pool.store.call(call)).status == "accepted"
    return Sent(issued.id, command, datetime.now(UTC), lambda: pool.team.services)


# ------------------------------------------------------------------------------------------------------------- floods


@signed
@pytest.mark.parametrize("how", ["forged", pytest.param("true", marks=pytest.mark.slow)])
async def test_many_commands(pool: Pool, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A burst is refused or capped; the pool works on meanwhile, a stop passes at once, and no memory fills."""
    issued, packed, _ = await pool.issue("pause-agent", agent="other")
    if how == "forged":
        burst = [("XADD", pool.keys.control, "MAXLEN", "~", 10_000, "*", "c", packed, "s", "0" * 64)] * 1000
        for _ in range(20):
            await pool.store.pipeline(burst)
    else:
        sender = _Burst(pool, issued)
        assert await sender.run(10_000) == {"accepted": 600, "busy": 9_400}
    handles = [await pool.team.orc.submit("sum_") for _ in range(20)]
    for handle in handles:
        await handle.result(TIMEOUT_S)
    sent = await pool.team.orc.admin.stop(reason="enough")
    found = await sent.receipts(timeout=30)
    assert found.complete
    assert {receipt.word for receipt in found.answered} == {"done"}
    # Of the supervisor and of the worker, one line in ten seconds each.
    assert caplog.text.count("commands_refused") <= 8
    waiting = await pool.team.orc.submit("sum_")
    assert (await waiting.status()).state == "ready"
    assert await pool.store.execute("XLEN", pool.keys.refused_control) < 1300
    assert await pool.store.execute("XLEN", pool.keys.control) < 11_000
    assert len(await _keys(pool, "receipts:")) <= (2 if how == "forged" else 602)
    assert len(await _keys(pool, "nonce:")) <= (2 if how == "forged" else 602)


class _Burst:
    """Somebody who gives true commands as fast as he can."""

    def __init__(self, pool: Pool, issued: Issued) -> None:
        self._pool, self._issued = pool, issued

    async def run(self, count: int) -> dict[str, int]:
        """Give them; how many came to what."""
        import anyio

        ends: dict[str, int] = {}
        per_minute = self._pool.team.settings.control.per_minute
        assert per_minute == 600

        async def some(number: int) -> None:
            for _ in range(number):
                issued = changed(self._issued, id=new_task_id())
                packed = pack_issued(issued)
                call = scripts.append(
                    self._pool.keys,
                    issued=issued,
                    packed=packed,
                    signature=self._pool.signer.sign(packed),
                    changes=[scripts.ChangeRow("pause:agent:other", "-")],
                    job=False,
                    per_minute=per_minute,
                    token="t",
                    now_us=str(self._issued.issued_ms * 1000),  # one minute for all, wherever it falls
                )
                status = (await self._pool.store.call(call)).status
                ends[status] = ends.get(status, 0) + 1

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(some, count // 50)
        return ends


async def _keys(pool: Pool, suffix: str) -> list[bytes]:
    found: list[bytes] = []
    cursor = 0
    while True:
        cursor, page = await pool.store.execute(
            "SCAN", cursor, "MATCH", f"{pool.keys.prefix}:*:{suffix}*", "COUNT", 10_000
        )
        found += page
        if not int(cursor):
            return found


# ------------------------------------------------------------------------------------------------------------ secrets


@pytest.mark.parametrize(
    "settings",
    [{"control__secret": SECRET, "control__previous_secret": PREVIOUS, "logging__level": "debug"}],
    indirect=True,
)
async def test_secrets_are_nowhere(
    pool: Pool, settings: Settings, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither secret is in a log line, in what settings look like, or in any key of the pool."""
    caplog.set_level("DEBUG")
    await pool.stop()
    issued, packed, _ = await pool.issue("start")
    await pool.push(issued, packed, "0" * 64, order=("stop:all", ""))
    await pool.recorded(1)
    await pool.team.orc.admin.start()
    await wait_for(lambda: "refused" in caplog.text, "the log to tell of it")
    texts = [caplog.text, "".join(capfd.readouterr()), repr(settings), str(settings), repr(pool.signer)]
    keys = await _keys(pool, "")
    stored = await pool.store.pipeline([("DUMP", key) for key in keys])
    for secret in (SECRET, PREVIOUS):
        assert all(secret not in text for text in texts)
        assert all(secret.encode() not in dump for dump in stored if isinstance(dump, bytes))


# ---------------------------------------------------------------------------------------------------------- key names


@signed
async def test_the_doctor_compares_keys(pool: Pool) -> None:
    """Each process publishes the name of its key; the doctor names those with another one, with none, and itself."""
    store, signer = pool.store, pool.signer

    async def listed() -> bool:
        return set((await read_key_names(store)).values()) == {signer.key}

    await wait_for(listed, "the supervisor and the worker to publish their keys")

    async def found(**control: SecretStr | None) -> tuple[str, str]:
        update = {"control": pool.team.settings.control.model_copy(update=control)}
        context = CheckContext(pool.team.settings.model_copy(update=update), store, read_info(""), {})
        (finding,) = await check_key_names(context)
        return finding.severity.value, finding.found

    assert await found() == ("ok", f"all processes sign with the secret {signer.key}")
    other = SecretStr("another secret of sixteen letters")
    severity, text = await found(secret=other)
    assert (severity, signer.key in text, "worker" in text, "supervisor" in text) == ("problem", True, True, True)
    severity, text = await found(secret=other, previous_secret=SecretStr(SECRET))
    assert (severity, "previous" in text) == ("warning", True)
    assert (await found(secret=None))[0] == "warning"
    spec = AgentSpec("unsigned", frozenset({"sum_"}))
    await store.call(registry.register(pool.keys, worker="w", spec=spec, slots=1, backlog=0, about={}, alive_s=60))
    severity, text = await found()
    assert severity == "problem"
    assert text.startswith("without a control secret")
    assert SECRET not in text
    about = {"key": signer.key, f"{SIGNATURE}unsigned": signer.sign_registration("w", "unsigned", 9)}
    await store.call(registry.register(pool.keys, worker="w", spec=spec, slots=1, backlog=0, about=about, alive_s=60))
    assert await found() == (
        "problem",
        "registered without a valid signature, so that the supervisor refuses them: worker w",
    )


# -------------------------------------------------------------------------------------------------------- registration


async def refused_by_leader(pool: Pool, worker: str) -> bool:
    """Whether the leader refuses a worker."""
    found: int = await pool.store.execute("HEXISTS", pool.keys.worker(worker), "refused")
    return found == 1


@signed
@pytest.mark.parametrize("signature", ["none", "another secret", "another worker", "more slots"])
async def test_a_rogue_worker_gets_no_task(pool: Pool, signature: str) -> None:
    """A worker that registers without the secret is refused: tasks of its agent wait, those of other agents end.

    Twin: the same registration with a valid signature gets the task.
    """
    agent, other = "mallory", replace(pool.signer, secret="of another pool")
    spec = AgentSpec(agent, frozenset({"loot"}))
    about = {
        "none": "",
        "another secret": other.sign_registration("rogue", agent, 1),
        "another worker": pool.signer.sign_registration("honest", agent, 1),
        "more slots": pool.signer.sign_registration("rogue", agent, 9),
    }

    async def enter(worker: str, signed_with: str) -> None:
        call = registry.register(
            pool.keys,
            worker=worker,
            spec=spec,
            slots=1,
            backlog=0,
            about={f"{SIGNATURE}{agent}": signed_with},
            alive_s=60,
        )
        await pool.store.call(call)

    await enter("rogue", about[signature])
    await wait_for(lambda: refused_by_leader(pool, "rogue"), "the leader to refuse the worker", WITHIN_S)
    await enter("rogue", about[signature])
    loot = await pool.team.orc.submit("loot", agent=agent)
    await (await pool.team.orc.submit("sum_")).result(timeout=TIMEOUT_S)
    assert await pool.store.execute("XLEN", pool.keys.inbox(agent)) == 0
    assert (await loot.status()).state == "ready"
    await enter("true", pool.signer.sign_registration("true", agent, 1))

    async def arrived() -> bool:
        entries: int = await pool.store.execute("XLEN", pool.keys.inbox(agent))
        return entries == 1

    await wait_for(arrived, "the task to be assigned to the signed worker")
    assert not await refused_by_leader(pool, "true")


@signed
async def test_older_programs_are_not_refused(pool: Pool) -> None:
    """While the pool admits programs that sign nothing, none is refused. Twin: behind the upgrade, it is."""
    signer = pool.signer
    check = RegistrationCheck(pool.team.services, Wakeup())
    pool.store.floor.value = OLDEST_FORMAT
    spec = AgentSpec("old", frozenset({"sum_"}))
    await pool.store.call(registry.register(pool.keys, worker="w", spec=spec, slots=1, backlog=0, about={}, alive_s=60))
    assert "w" in await read_forged(pool.store, signer.accepts_registration)
    with anyio.move_on_after(0.3):
        await check.run()
    assert not await refused_by_leader(pool, "w")
    pool.store.floor.value = FORMAT
    with anyio.move_on_after(0.3):
        await check.run()
    assert await refused_by_leader(pool, "w")


@signed
async def test_a_worker_without_the_secret_ends(pool: Pool) -> None:
    """A worker that the leader refuses finishes what it runs and ends with a sentence that names the setting."""
    agent = Agent("plain")

    @agent.skill
    async def idle() -> None:
        """Does nothing."""

    settings = pool.team.settings
    settings = settings.model_copy(update={"control": settings.control.model_copy(update={"secret": None})})
    async with open_services(settings, name="worker") as services:
        worker = Worker(services, [agent], worker=new_worker_id())
        with anyio.fail_after(WITHIN_S), pytest.raises(ConfigError, match=r"control\.secret"):
            await worker.run(listen=False)
    assert worker.id not in await worker_ids(pool.store)
