"""Adds, changes, pauses and deletes schedules at run time. Supervisors hear of it by the doorbell."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.core.errors import InvalidInput, ScheduleExists
from orchestrator.schedules import queries, scripts
from orchestrator.schedules.model import NEVER, decode_plan, digest_plan, encode_plan
from orchestrator.schedules.scripts import PutStatus, SwitchStatus

if TYPE_CHECKING:
    from orchestrator.schedules.model import Plan, Stored
    from orchestrator.store.store import Store


class AddStatus(StrEnum):
    """What `add` did."""

    ADDED = "added"
    REPLACED = "replaced"
    SAME = "same"


async def add(store: Store, name: str, plan: Plan, *, replace: bool, retry_for_s: float = 0.0) -> AddStatus:
    """Store a schedule. One whose times stay the same keeps the next of them, and a paused one stays paused.

    Args:
        store: where.
        name: of the schedule.
        plan: what it does; checked by the caller but for its times.
        replace: whether it may take the place of one that says something else.
        retry_for_s: how long to repeat while Redis does not answer; asking twice does no harm.

    Raises:
        InvalidInput: its times are not possible.
        ScheduleExists: one of this name says something else.
        StoreError: Redis did not do it.
    """
    digest = digest_plan(plan)
    while True:
        before = await store.ask(lambda: queries.stored(store, name), retry_for_s=retry_for_s)
        if before is not None and before.digest == digest:
            return AddStatus.SAME
        if before is not None and not replace:
            raise ScheduleExists(name, _describe(before))
        now_ms = await store.ask(lambda: queries.server_ms(store), retry_for_s=retry_for_s)
        next_ms = _first_fire(plan, now_ms)
        call = scripts.put(
            store.keys,
            name=name,
            plan=encode_plan(plan),
            digest=digest,
            before="" if before is None else before.digest,
            next_ms="" if before is not None and _same_times(before, plan) else next_ms,
            anchor_ms=now_ms,
        )
        status = await store.call(call, retry_for_s=retry_for_s)
        if status is PutStatus.CHANGED:
            continue
        # A call that was repeated may find what it has stored itself.
        return AddStatus.ADDED if before is None else AddStatus.REPLACED


async def pause(store: Store, name: str, *, retry_for_s: float = 0.0) -> bool:
    """Let a schedule fire no more; answers whether it did before.

    Raises:
        NotFound: there is none of this name.
    """
    status = await store.call(scripts.pause(store.keys, name=name), retry_for_s=retry_for_s)
    if status is SwitchStatus.UNKNOWN:
        raise await queries.unknown(store, name)
    return status is SwitchStatus.DONE


async def resume(store: Store, name: str, *, retry_for_s: float = 0.0) -> bool:
    """Let a paused schedule fire again, from its next time on; answers whether it was paused.

    Raises:
        NotFound: there is none of this name.
        InvalidInput: its definition cannot be read, or this machine does not know its zone.
    """
    while True:
        found = await store.ask(lambda: queries.stored(store, name), retry_for_s=retry_for_s)
        if found is None:
            raise await queries.unknown(store, name)
        now_ms = await store.ask(lambda: queries.server_ms(store), retry_for_s=retry_for_s)
        next_ms = _time_text(decode_plan(found.plan).timing(found.anchor_ms).after(now_ms))
        call = scripts.resume(store.keys, name=name, before=found.digest, next_ms=next_ms)
        status = await store.call(call, retry_for_s=retry_for_s)
        if status is SwitchStatus.DONE:
            return True
        if status is SwitchStatus.ALREADY:
            return False


async def delete(store: Store, name: str, *, retry_for_s: float = 0.0) -> None:
    """Delete a schedule; the tasks that it has submitted stay.

    Raises:
        NotFound: there is none of this name.
    """
    # Asked first: a call that is repeated does not find any more what it has deleted itself.
    if await store.ask(lambda: queries.stored(store, name), retry_for_s=retry_for_s) is None:
        raise await queries.unknown(store, name)
    await store.call(scripts.delete(store.keys, name=name), retry_for_s=retry_for_s)


def _first_fire(plan: Plan, now_ms: int) -> str:
    first_ms = plan.timing(now_ms).after(now_ms)
    if first_ms is None:
        raise InvalidInput(f"cron {plan.cron!r} names no day of the next 50 years; see docs/guides/schedules.md")
    return str(first_ms)


def _time_text(ms: int | None) -> str:
    return NEVER if ms is None else str(ms)


def _same_times(before: Stored, plan: Plan) -> bool:
    try:
        return decode_plan(before.plan).same_times(plan)
    except InvalidInput:
        return False


def _describe(before: Stored) -> str:
    try:
        plan = decode_plan(before.plan)
    except InvalidInput:
        return "something that cannot be read"
    return f"{plan.skill!r}, {plan.when}"
