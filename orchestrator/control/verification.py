"""Verifies the desired state for the leading supervisor and restores slots that were forged.

A client with write access to Redis can write slots without the secret; such slots are restored. An old signed command
that was copied back into a slot is recognized by the control stream, which has a newer command for the slot.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.control import scripts
from orchestrator.control.commands import SetLimit, decode_command
from orchestrator.control.desired import (
    SKEW_MS,
    ActiveCommand,
    Desired,
    is_of_later_version,
    read_desired,
    read_number,
    read_slot,
)
from orchestrator.control.entries import read_entry
from orchestrator.control.records import without_replays
from orchestrator.control.scripts import Verification, VerificationRow
from orchestrator.core.command_record import pack_slot_value
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.rates import parse_rate
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import VERIFIED, job_slot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from orchestrator.control.entries import ControlEntry
    from orchestrator.control.signing import Signer
    from orchestrator.core.command_record import SlotValue
    from orchestrator.store.store import Store

BATCH: Final = 500
WORKER_COMMAND_MS: Final = 3_600_000
"""A command for an unknown worker is dropped after this time."""

_WORKER_SLOT: Final = "drain:worker:"
_ENVELOPE_SLOTS: Final = ("stop:session:", "stop:family:")
"""Stops of what the envelope of a task names; `desired` has the number of those that are active."""
_COUNTERS: Final = frozenset({"seq", "epoch", "sessions"})
_log = get_logger(__name__)


class SignedStream(NamedTuple):
    """The signed commands of the control stream.

    Attributes:
        active: by slot, the last command if it is active.
        epoch: highest one that a command was issued in.
    """

    active: Mapping[str, SlotValue]
    epoch: int


async def verify_desired_state(
    store: Store,
    signer: Signer,
    stored: Sequence[bytes] | None = None,
    *,
    expected: Mapping[str, SlotValue] = MappingProxyType({}),
) -> Desired:
    """Verify the desired state, restore forged and deleted slots, and return the result.

    Args:
        store: of the pool.
        signer: checks signatures.
        stored: the state, if the caller has just read it.
        expected: the commands that were active before, by slot. One that is missing, or that an older one has replaced
            with its verified copy, is restored, unless the control stream has its end.
    """
    desired_key = store.keys.desired
    reply = await store.execute("HGETALL", desired_key) if stored is None else stored
    fields = dict(zip((read_text(name) for name in reply[::2]), reply[1::2], strict=True))
    rows = await _judge(store, signer, fields, expected)
    if signer.wanted:
        rows += await _deleted(store, signer, fields, expected)
    untrue = [row.slot for row in rows if row.verification is not Verification.TRUE]
    rows += [
        VerificationRow(slot, fields.get(slot, b""), Verification.OVER)
        for slot in [*await _gone_workers(store, signer, reply), *await _ended_pauses(store, signer, reply)]
    ]
    sessions = _wrong_count(fields)
    if not rows and sessions is None:
        return read_desired(reply, signer)
    for at in range(0, max(1, len(rows)), BATCH):
        call = scripts.verify(
            store.keys, rows=rows[at : at + BATCH], seq=fields.get("seq", b""), sessions=None if at else sessions
        )
        await store.call(call)
    if untrue and signer.wanted:
        _log.error("desired_state_forged", desired=untrue)
    return read_desired(await store.execute("HGETALL", desired_key), signer)


async def read_signed_stream(store: Store, signer: Signer) -> SignedStream:
    """Read all signed commands of the control stream, oldest first."""
    latest: dict[str, SlotValue] = {}
    epoch = 0
    async for one in _commands(store, signer, "-"):
        if one.issued is None or one.command is None:
            continue
        slots = {change.slot for change in one.command.changes}
        # A command that renews the epoch was issued in the one before.
        epoch = max(epoch, one.issued.epoch + ("epoch" in slots))
        for slot in slots - {"epoch"}:
            value = one.in_slot(slot)
            if value is not None:
                latest[slot] = value
    return SignedStream({slot: value for slot, value in latest.items() if not value.ended}, epoch)


async def correct_rate(store: Store, signer: Signer, *, per_minute: int) -> bool:
    """Let only signed commands of the control stream count in this minute, and return whether others did.

    A client without the secret could fill the count, so that commands other than stops would be refused.
    """
    seconds = read_whole((await store.execute("TIME"))[0])
    rate_key = store.keys.control_rate(seconds // 60)
    # MGET returns nil for a key of another type, which counts as none.
    count = read_number((await store.execute("MGET", rate_key))[0] or b"0") if signer.wanted else 0
    if count < per_minute / 2:
        return False
    signed = 0
    async for _ in _commands(store, signer, str(seconds // 60 * 60_000)):
        signed += 1
    if signed >= count:
        return False
    await store.execute("SET", rate_key, signed, "EX", 120)
    return True


async def _deleted(
    store: Store, signer: Signer, fields: Mapping[str, bytes], expected: Mapping[str, SlotValue]
) -> list[VerificationRow]:
    """Return the rows that restore commands whose slot and verified copy are gone, although nothing ended them."""
    there = {name.removeprefix(VERIFIED) for name in fields}
    gone = {slot: value for slot in expected if slot not in there and (value := _known(expected, slot, signer))}
    if not gone:
        return []
    latest: dict[str, ControlEntry] = {}
    async for one in _commands(store, signer, "-"):
        if one.command is not None:
            latest |= {change.slot: one for change in one.command.changes if change.slot in gone}
    rows: list[VerificationRow] = []
    for slot, value in gone.items():
        found = latest[slot].in_slot(slot) if slot in latest else None
        # The stream may have been deleted and filled with old commands.
        last = value if found is None or _is_older(found, value) else found
        if not last.ended and await _applies(store, slot, last):
            rows.append(_row_of(slot, b"", last, pack_slot_value(last)))
    return rows


async def _applies(store: Store, slot: str, value: SlotValue) -> bool:
    """Return whether a command has not ended by itself: a pause at its end, a drain with its worker."""
    if slot.startswith(_WORKER_SLOT):
        keys, worker = store.keys, slot.removeprefix(_WORKER_SLOT)
        return any(await _replies(store, [("EXISTS", keys.worker(worker), keys.silent(worker))]))
    until_ms = ActiveCommand(slot, value.mark, value.issued).until_ms
    return until_ms is None or until_ms > read_whole((await store.execute("TIME"))[0]) * 1000


async def _commands(store: Store, signer: Signer, start: str) -> AsyncIterator[ControlEntry]:
    """Yield the valid commands of the control stream from an entry on."""
    while True:
        page = await store.execute("XRANGE", store.keys.control, start, "+", "COUNT", BATCH)
        received = [read_entry(read_text(entry), fields, signer) for entry, fields in page]
        for one in await without_replays(store, store.keys.control, received):
            if not one.problem:
                yield one
        if len(page) < BATCH:
            return
        start = f"({read_text(page[-1][0])}"


async def _judge(
    store: Store, signer: Signer, fields: Mapping[str, bytes], expected: Mapping[str, SlotValue]
) -> list[VerificationRow]:
    rows: list[VerificationRow] = []
    changed: dict[str, SlotValue | None] = {}
    copied_back: set[str] = set()
    for slot in sorted({name.removeprefix(VERIFIED) for name in fields} - _COUNTERS):
        value, verified = fields.get(slot, b""), fields.get(VERIFIED + slot)
        found = read_slot(slot, value, signer)
        if found is None and is_of_later_version(slot, value, signer):
            continue
        if not signer.wanted:
            # Verified copies and ended slots remain from a time with a secret.
            if found is None or found.ended:
                rows.append(VerificationRow(slot, value, Verification.OVER))
        elif found is None or value != verified:
            changed[slot] = found
        elif slot in expected and _is_replaced(found, expected[slot], signer):
            changed[slot] = found
            copied_back.add(slot)
    latest_commands = await _latest_commands(store, signer, changed)
    for slot, found in changed.items():
        value = fields.get(slot, b"")
        before = _later(read_slot(slot, fields.get(VERIFIED + slot), signer), _known(expected, slot, signer))
        latest = latest_commands.get(slot)
        contradicted = slot in latest_commands and (latest is None or found is None or latest.packed != found.packed)
        # Without the stream, nothing tells that the older command was accepted later.
        contradicted = contradicted or (slot in copied_back and latest is None)
        if found is not None and not contradicted and not _is_older(found, before):
            rows.append(VerificationRow(slot, value, Verification.TRUE))
        else:
            rows.append(_restored(slot, value, before, latest))
    return rows


def _known(expected: Mapping[str, SlotValue], slot: str, signer: Signer) -> SlotValue | None:
    """Return the command that was active before, if its secret is still accepted."""
    value = expected.get(slot)
    return value if value is not None and signer.accepts(value.packed, value.signature) else None


def _is_replaced(found: SlotValue, known: SlotValue, signer: Signer) -> bool:
    """Return whether an earlier command is in place of one that was active before, whose secret is still accepted."""
    return found.issued.issued_ms < known.issued.issued_ms and signer.accepts(known.packed, known.signature)


def _later(one: SlotValue | None, other: SlotValue | None) -> SlotValue | None:
    if one is None or other is None:
        return one or other
    return one if one.issued.issued_ms >= other.issued.issued_ms else other


def _is_older(found: SlotValue, before: SlotValue | None) -> bool:
    """Return whether a command had expired when the verified one was issued, so that it is the older one."""
    return before is not None and found.issued.not_after_ms + SKEW_MS < before.issued.issued_ms


def _restored(slot: str, value: bytes, before: SlotValue | None, latest: ControlEntry | None) -> VerificationRow:
    """Return the row that restores a slot to its last true command.

    That is the verified command, the one that was active before, or a newer one of the stream that was overwritten
    before its verification.
    """
    if latest is not None and (before is None or latest.came_after(before.issued)):
        before = latest.in_slot(slot)
    if before is None or before.ended:
        return VerificationRow(slot, value, Verification.OVER)
    return _row_of(slot, value, before, pack_slot_value(before))


def _row_of(slot: str, value: bytes, true: SlotValue, again: bytes | None) -> VerificationRow:
    command = decode_command(true.issued.command)
    if isinstance(command, SetLimit):
        rate = parse_rate(command.rate)
        return VerificationRow(slot, value, Verification.FALSE, rate.count, rate.window_us, again)
    return VerificationRow(slot, value, Verification.FALSE, again=again)


async def _latest_commands(
    store: Store, signer: Signer, changed: Mapping[str, SlotValue | None]
) -> dict[str, ControlEntry | None]:
    """Return the last command of the control stream for each slot, or None if it has none.

    A slot whose command is older than the stream is left out, because the stream cannot tell.
    """
    if not changed:
        return {}
    oldest = await store.execute("XRANGE", store.keys.control, "-", "+", "COUNT", 1)
    reach_ms = read_whole(oldest[0][0].partition(b"-")[0]) if oldest else None
    latest_commands: dict[str, ControlEntry | None] = {
        slot: None
        for slot, found in changed.items()
        if found and reach_ms is not None and found.issued.issued_ms >= reach_ms
    }
    # The time of a forged slot is unknown, so that the whole stream is read for it.
    since_ms = min(found.issued.issued_ms if found else 0 for found in changed.values())
    async for one in _commands(store, signer, str(max(0, since_ms - SKEW_MS))):
        if one.command is not None:
            slots = {job_slot(one.id)} if one.command.job else {change.slot for change in one.command.changes}
            latest_commands |= dict.fromkeys(slots & set(changed), one)
    return latest_commands


async def _gone_workers(store: Store, signer: Signer, reply: Sequence[bytes]) -> list[str]:
    """Return the slots of commands for workers that have exited; worker ids are not reused.

    A worker that only sends no heartbeats may be frozen or cut off, and must find its command when it returns.
    """
    slots = [one for one in read_desired(reply, signer).active.values() if one.slot.startswith(_WORKER_SLOT)]
    if not slots:
        return []
    keys, workers = store.keys, [_worker_of(one) for one in slots]
    listed = [("ZSCORE", keys.workers, worker) for worker in workers]
    stored = [("EXISTS", keys.worker(worker), keys.silent(worker)) for worker in workers]
    time, *found = await _replies(store, [("TIME",), *listed, *stored])
    known = [score is not None or there for score, there in zip(found[: len(slots)], found[len(slots) :], strict=True)]
    return [
        one.slot
        for one, there in zip(slots, known, strict=True)
        if not there and read_whole(time[0]) * 1000 > one.issued.issued_ms + WORKER_COMMAND_MS
    ]


async def _ended_pauses(store: Store, signer: Signer, reply: Sequence[bytes]) -> list[str]:
    """Return the slots of pauses whose end has passed; scripts ignore them from then on."""
    ends = {one.slot: one.until_ms for one in read_desired(reply, signer).active.values() if one.until_ms is not None}
    if not ends:
        return []
    (time,) = await _replies(store, [("TIME",)])
    return [slot for slot, until_ms in ends.items() if until_ms <= read_whole(time[0]) * 1000]


def _worker_of(one: ActiveCommand) -> str:
    return one.slot.removeprefix(_WORKER_SLOT)


async def _replies(store: Store, commands: list[tuple[str, ...]]) -> list[Any]:
    replies = await store.pipeline(commands)
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


def _wrong_count(fields: Mapping[str, bytes]) -> int | None:
    """Return the number of stopped sessions, if the stored count differs."""
    count = sum(value[:1] == b"1" for slot, value in fields.items() if slot.startswith(_ENVELOPE_SLOTS))
    return None if fields.get("sessions", b"0") == str(count).encode() else count
