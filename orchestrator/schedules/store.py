"""Stores, pauses, resumes and deletes schedules. The scripts notify supervisors."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.core.errors import InvalidInput, QueueFull, ScheduleExists
from orchestrator.schedules import queries, scripts
from orchestrator.schedules.model import NEVER, decode_plan, digest_plan, encode_plan
from orchestrator.schedules.scripts import PutStatus, SwitchStatus

if TYPE_CHECKING:
    from orchestrator.schedules.model import Plan, ScheduleRecord
    from orchestrator.store.store import Store


class AddStatus(StrEnum):
    """Result of `add`."""

    ADDED = "added"
    REPLACED = "replaced"
    SAME = "same"


async def add(
    store: Store, name: str, plan: Plan, *, replace: bool, most: int = 2**31, retry_for_s: float = 0.0
) -> AddStatus:
    """Store a schedule. With unchanged times it keeps its next fire time, and a paused schedule stays paused.

    Args:
        store: the pool's store.
        name: name of the schedule.
        plan: its plan, checked except for its times.
        replace: replace a schedule of this name with another plan.
        most: schedules that the pool may have.
        retry_for_s: how long to repeat a call that Redis does not answer; a repeat does no harm.

    Raises:
        InvalidInput: the plan has no fire time.
        ScheduleExists: another schedule has this name, and `replace` is not set.
        QueueFull: the pool has `most` schedules.
        StoreError: Redis did not do it.
    """
    digest = digest_plan(plan)
    while True:
        before = await store.read_with_retry(lambda: queries.record(store, name), retry_for_s=retry_for_s)
        if before is not None and before.digest == digest:
            return AddStatus.SAME
        if before is not None and not replace:
            raise ScheduleExists(name, _describe(before))
        now_ms = await store.read_with_retry(lambda: queries.server_ms(store), retry_for_s=retry_for_s)
        next_ms = _first_fire(plan, now_ms)
        call = scripts.put(
            store.keys,
            name=name,
            plan=encode_plan(plan),
            digest=digest,
            before="" if before is None else before.digest,
            next_ms="" if before is not None and _same_times(before, plan) else next_ms,
            anchor_ms=now_ms,
            most=most,
        )
        status = await store.call(call, retry_for_s=retry_for_s)
        if status is PutStatus.CHANGED:
            continue
        if status is PutStatus.FULL:
            raise QueueFull("schedules", most)
        # A repeated call finds the plan that its first try stored.
        return AddStatus.ADDED if before is None else AddStatus.REPLACED


async def pause(store: Store, name: str, *, retry_for_s: float = 0.0) -> bool:
    """Stop a schedule from firing. Returns False if it was paused before.

    Raises:
        NotFound: no schedule has this name.
    """
    status = await store.call(scripts.pause(store.keys, name=name), retry_for_s=retry_for_s)
    if status is SwitchStatus.UNKNOWN:
        raise await queries.unknown(store, name)
    return status is SwitchStatus.DONE


async def resume(store: Store, name: str, *, retry_for_s: float = 0.0) -> bool:
    """Let a paused schedule fire again from its next fire time on. Returns False if it was not paused.

    Raises:
        NotFound: no schedule has this name.
        InvalidInput: its plan cannot be decoded, or this machine lacks its time zone.
    """
    while True:
        found = await store.read_with_retry(lambda: queries.record(store, name), retry_for_s=retry_for_s)
        if found is None:
            raise await queries.unknown(store, name)
        now_ms = await store.read_with_retry(lambda: queries.server_ms(store), retry_for_s=retry_for_s)
        next_ms = _time_text(decode_plan(found.plan).timing(found.anchor_ms).after(now_ms))
        call = scripts.resume(store.keys, name=name, before=found.digest, next_ms=next_ms)
        status = await store.call(call, retry_for_s=retry_for_s)
        if status is SwitchStatus.DONE:
            return True
        if status is SwitchStatus.ALREADY:
            return False


async def delete(store: Store, name: str, *, retry_for_s: float = 0.0) -> None:
    """Delete a schedule. Tasks that it submitted stay.

    Raises:
        NotFound: no schedule has this name.
    """
    # Look first: a repeated call no longer finds the schedule that its first try deleted.
    if await store.read_with_retry(lambda: queries.record(store, name), retry_for_s=retry_for_s) is None:
        raise await queries.unknown(store, name)
    await store.call(scripts.delete(store.keys, name=name), retry_for_s=retry_for_s)


def _first_fire(plan: Plan, now_ms: int) -> str:
    first_ms = plan.timing(now_ms).after(now_ms)
    if first_ms is None:
        raise InvalidInput(f"cron {plan.cron!r} matches no day of the next 50 years; correct its day and month")
    return str(first_ms)


def _time_text(ms: int | None) -> str:
    return NEVER if ms is None else str(ms)


def _same_times(before: ScheduleRecord, plan: Plan) -> bool:
    try:
        return decode_plan(before.plan).same_times(plan)
    except InvalidInput:
        return False


def _describe(before: ScheduleRecord) -> str:
    try:
        plan = decode_plan(before.plan)
    except InvalidInput:
        return "a damaged plan"
    return f"{plan.skill!r}, {plan.when}"
