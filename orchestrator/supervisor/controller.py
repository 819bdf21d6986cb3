"""Applies control commands for the pool.

It verifies the desired state, releases suspended tasks after a stop, sets the log level, passes on jobs, and sends
receipts. The control stream only announces changes; the desired state is read at the start, after every command and in
every sweep.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.control import scripts
from orchestrator.control.desired import NOTHING, is_signed, read_desired, read_slot
from orchestrator.control.entries import READ_COUNT, ControlEntry, read_entry
from orchestrator.control.receipts import SIGNATURE, SUPERVISOR, read_signed
from orchestrator.control.records import without_replays
from orchestrator.control.refusals import Refusals
from orchestrator.control.restoring import merge, prune_revisions
from orchestrator.control.signing import signer_of
from orchestrator.control.verification import correct_rate, read_signed_stream, verify_desired_state
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger, override_level
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestrator.control.desired import Desired
    from orchestrator.control.signing import Signer
    from orchestrator.core.command_record import SlotValue
    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from orchestrator.services import Services
    from orchestrator.supervisor.jobs import Jobs

RELEASE_BATCH: Final = 500
RELEASED_AT_ONCE: Final = 500
"""Ended stops whose tasks return between two looks at the desired state; a sweep goes on."""
CATCH_UP: Final = 500
"""How many of the newest commands are checked for missing receipts at the start and after a gap."""
BLOCK_S: Final = 30.0
HOLDING: Final = ("stop:session:", "stop:family:", "stop:skill:")
REFUSALS_A_MINUTE: Final = 1000
"""Refused commands that are recorded; Redis keeps about as many."""
REFUSED_BYTES: Final = 4096
"""How much of a refused command is recorded, because its size is not limited."""

_OURS: Final = frozenset({"all", "supervisor"})
"""Audiences that the supervisor belongs to."""

_log = get_logger(__name__)


class Controller:
    """Applies commands for the pool.

    Args:
        services: of the pool.
        jobs: gets the jobs.
        on_signed: called when the pool has signed commands and this supervisor has no secret, so that it must not lead.
    """

    def __init__(self, services: Services, *, jobs: Jobs, on_signed: Callable[[], None] = lambda: None) -> None:
        self._services, self._jobs = services, jobs
        self._applied_seq: int | None = None
        self._known = NOTHING
        self._may_hold = False
        self._on_signed = on_signed
        self._expected: Mapping[str, SlotValue] | None = None
        """The active commands of the last verification; None: the control stream is not read yet."""
        self._applying = anyio.Lock()
        self._refusals = Refusals(REFUSALS_A_MINUTE)
        self._turns: list[LoopTurn] = []

    @property
    def _signer(self) -> Signer:
        return signer_of(self._services.settings, place=self._services.keys.root)

    async def run(self) -> None:
        """Apply commands until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._sweep)
                await self._listen()
        finally:
            # The level of a pool that this process no longer leads must not hold for its other pools.
            override_level(None, of=self._services.keys.root)

    async def _sweep(self) -> None:
        """Apply the desired state in every sweep and after a change of the settings: the secret may be another one."""
        with self._watch_loop("control_sweep", waits_s=sweep_s) as turn:
            while True:
                with anyio.move_on_after(sweep_s(self._services.settings)):
                    await self._services.live.changed()
                turn.record()
                try:
                    await self._apply_desired_state()
                    await self._correct_rate()
                    _log.debug("control_swept")
                except StoreError as failure:
                    _log.failure("control_sweep_failed", error=failure)

    async def _correct_rate(self) -> None:
        if self._signer.wanted:
            per_minute = self._services.settings.control.per_minute
            if await correct_rate(self._services.store, self._signer, per_minute=per_minute):
                _log.warning("command_count_forged")

    async def _listen(self) -> None:
        control_key = self._services.keys.control
        link = self._services.store.blocking_link(BLOCK_S, name="control")
        cursor: str | None = None
        pauses = Pauses()
        turn = self._watch_loop("controller", waits_s=BLOCK_S)
        try:
            while True:
                turn.record()
                try:
                    if cursor is None:
                        # The position is read before the state, so that no command in between is missed.
                        last = await link.execute("XREVRANGE", control_key, "+", "-", "COUNT", CATCH_UP)
                        await self._apply_desired_state()
                        # The new leader answers the commands that were given while no supervisor led.
                        await self._answer(await self._unanswered(last[::-1]))
                        cursor = read_text(last[0][0]) if last else "0-0"
                    reply = await link.execute(
                        "XREAD", "COUNT", READ_COUNT, "BLOCK", int(BLOCK_S * 1000), "STREAMS", control_key, cursor
                    )
                    if reply:
                        entries = reply[0][1]
                        _log.debug("control_read", count=len(entries))
                        # The state changed before the stream, and it alone decides.
                        await self._apply_desired_state()
                        await self._answer(
                            [read_entry(read_text(id_), fields, self._signer) for id_, fields in entries]
                        )
                        cursor = read_text(entries[-1][0])
                    pauses.reset()
                except StoreError as failure:
                    _log.failure("control_read_failed", error=failure)
                    cursor, self._applied_seq = None, None
                    await anyio.sleep(pauses.next_s(failure))
        finally:
            turn.close()
            await link.close()

    def _watch_loop(self, name: str, *, waits_s: float | Callable[[Settings], float]) -> LoopTurn:
        turn = self._services.watch_loop(name, waits_s=waits_s)
        self._turns.append(turn)
        return turn

    async def _apply_desired_state(self) -> None:
        async with self._applying:
            expected = await self._read_expected()
            stored = await self._restore_lost()
            store, signer = self._services.store, self._signer
            if stored is None:
                stored = await store.execute("HGETALL", store.keys.desired)
            if not signer.wanted and is_signed(stored):
                self._on_signed()
                await anyio.sleep_forever()  # the leader ends all loops
            desired = await verify_desired_state(store, signer, stored, expected=expected)
            if signer.wanted:
                found = {slot: read_slot(slot, one.value, signer) for slot, one in desired.commands.items()}
                self._expected = {slot: value for slot, value in found.items() if value is not None}
            await self._apply(desired)

    async def _read_expected(self) -> Mapping[str, SlotValue]:
        """Return the commands that must be active, at first those of the control stream, with the epoch."""
        if not self._signer.wanted:
            return {}
        if self._expected is None:
            found = await read_signed_stream(self._services.store, self._signer)
            self._expected = found.active
            self._known = replace(self._known, epoch=max(self._known.epoch, found.epoch))
        return self._expected

    async def _restore_lost(self) -> Sequence[bytes] | None:
        """Write back what Redis has lost since this supervisor last read the desired state.

        Returns:
            The stored state, or None if this call changed it.
        """
        store, keys = self._services.store, self._services.keys
        revisions = await store.execute("HGETALL", keys.desired_revisions)
        while True:
            reply: Sequence[bytes] = await store.execute("HGETALL", keys.desired)
            stored = read_desired(reply, self._signer, revisions)
            if stored.seq == self._known.seq:
                break
            # A command or an end that came between the two reads would have no revision, or an older one.
            again = await store.execute("HGETALL", keys.desired_revisions)
            if again == revisions:
                break
            revisions = again
        merged = merge(self._known, stored)
        if merged.lost:
            _log.error("desired_state_lost", desired=merged.lost)
        self._known = merged.desired
        calls = merged.calls(keys, self._signer)
        for call in calls:
            await store.call(call)
        if merged.complete:
            await prune_revisions(store, stored)
        return None if calls else reply

    async def _apply(self, desired: Desired) -> None:
        override_level(desired.log_level, of=self._services.keys.root)
        self._jobs.set(desired.jobs)
        # Only stops of sessions or skills suspend tasks; otherwise there is nothing to release.
        if desired.seq != self._applied_seq or self._may_hold:
            try:
                left = await self._release(desired)
            except ServerRefused as refusal:
                # Damaged data of suspended tasks must not stop the supervisor from answering commands.
                _log.error("held_release_failed", error=str(refusal))
                left = True
            self._may_hold = left or any(slot.startswith(HOLDING) for slot in desired.active)
            self._applied_seq = desired.seq

    async def _release(self, desired: Desired) -> bool:
        """Release the tasks that ended stops suspended; return True if there were any."""
        store, keys = self._services.store, self._services.keys
        held = [read_text(name) for name in await store.execute("SMEMBERS", keys.suspended_scopes)]
        scopes = [scope for scope in held if not (keys.is_version_scope(scope) or keys.is_budget_scope(scope))]
        ended = [scope for scope in scopes if keys.stop_slot(scope) not in desired.active]
        # Clients write this list: many scopes that hold nothing must not delay an answer to a command.
        for scope in random.sample(ended, min(len(ended), RELEASED_AT_ONCE)):
            try:
                await self._release_scope(scope)
            except ServerRefused as refusal:
                # Damaged data of one scope must hold no task of the others.
                _log.error("held_release_failed", error=str(refusal))
        return bool(scopes)

    async def _release_scope(self, scope: str) -> None:
        store, keys, left = self._services.store, self._services.keys, True
        while left:
            # One loop releases, and the other one may wait for it.
            for turn in self._turns:
                turn.record()
            call = scripts.release(keys, scope=scope, slot=keys.stop_slot(scope), limit=RELEASE_BATCH)
            moved, left = await store.call(call)
            if moved:
                _log.info("suspended_tasks_released", scope=scope, count=moved)

    async def _unanswered(self, entries: list[Any]) -> list[ControlEntry]:
        """Return the entries that no supervisor has answered."""
        received = [read_entry(read_text(id_), fields, self._signer) for id_, fields in entries]
        keys = self._services.keys
        true = [one for one in received if not one.problem]
        fields = (SUPERVISOR.encode(), SIGNATURE + SUPERVISOR.encode())
        known = await self._services.store.pipeline([("HMGET", keys.receipts(one.id), *fields) for one in true])
        return [one for one, stored in zip(true, known, strict=True) if not self._is_answered(one, stored)]

    def _is_answered(self, one: ControlEntry, stored: Any) -> bool:
        """Return whether a supervisor has answered; a key of another type counts, because it takes no receipt."""
        if isinstance(stored, StoreError):
            return True
        text, signature = stored
        return text is not None and (
            not self._signer.wanted or read_signed(one.id, SUPERVISOR, text, signature, self._signer) is not None
        )

    async def _answer(self, received: list[ControlEntry]) -> None:
        if not received:
            return
        store, keys = self._services.store, self._services.keys
        rows: list[scripts.ReceiptRow] = []
        judged = await without_replays(store, keys.control, received)
        refused = self._refusals.take([one for one in judged if one.problem])
        rows += [scripts.ReceiptRow(one.id, SUPERVISOR, "refused", one.problem) for one in refused]
        for one in judged:
            if not one.problem and one.issued is not None and one.command is not None:
                _log.info("command_received", command=one.id, kind=one.command.kind, actor=one.issued.actor)
                if one.command.audience in _OURS:
                    # `Jobs` sends the later receipts of a job.
                    rows.append(scripts.ReceiptRow(one.id, SUPERVISOR, "received" if one.command.job else "done"))
        if rows:
            await store.call(scripts.receipt(keys, rows=rows, signer=self._signer))
        if refused:
            records = [
                scripts.RefusedRow(one.entry, one.packed[:REFUSED_BYTES], one.signature[:64], one.problem)
                for one in refused
            ]
            await store.call(scripts.refuse(keys, rows=records))
