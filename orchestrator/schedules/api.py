"""Methods for schedules, as `orc.admin.schedules`. Each change is made first, then recorded with actor and reason."""

from __future__ import annotations

import itertools
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec.structs import replace

from orchestrator.agents.presence import find_absence, require_presence, warn_of_absence
from orchestrator.control.commands import RecordSchedule
from orchestrator.control.records import find_accepted
from orchestrator.control.scripts import AppendStatus
from orchestrator.control.sending import send
from orchestrator.control.signing import signer_of
from orchestrator.core.command_record import check_said
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import CommandRefused, InvalidInput, NotFound, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.ids import TaskIds, check_name, check_task_id
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.schedules import queries
from orchestrator.schedules import store as schedule_store
from orchestrator.schedules.model import NEVER, decode_plan
from orchestrator.schedules.plans import build_plan, refusal, submission
from orchestrator.schedules.timing import fires
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.scripts import ScheduledFire, UnusualRow
from orchestrator.tasks.submission import SubmissionValidator, submit_caps
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from orchestrator.schedules.model import Plan, Schedule, ScheduleRecord
    from orchestrator.schedules.plans import ScheduleOptions
    from orchestrator.services import Services
    from orchestrator.tasks.submission import Arguments, NamedSkill

PREVIEW_MAX: Final = 1000
_log = get_logger(__name__)


class Schedules:
    """Adds, changes and lists schedules. A supervisor fires them.

    Every method that changes something takes `reason` and `actor` (by default user and host of this process). Methods
    raise `InvalidInput` for invalid values, `NotFound` for an unknown name, `StoreError` when Redis did not do it.
    """

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    async def add(
        self,
        name: str,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        replace: bool = False,
        require_agent: bool = False,
        reason: str = "",
        actor: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> str:
        """Add a schedule. Returns "added", "replaced", or "same" if an equal schedule exists.

        Warns with `NoAgentWarning` when no live agent has the skill.

        Args:
            name: name of the schedule.
            skill: name of the handler that its tasks run, or a `Skill`.
            args: arguments of the tasks.
            replace: replace an existing schedule, which keeps its history and stays paused if it is.
            require_agent: refuse the schedule when no live agent has the skill.
            reason: text shown in the command record.
            actor: who makes the change.
            options: `cron` (five fields) with `zone` (UTC), or `every`; `overlap`, `catch_up`; and for its tasks
                `agent`, `session`, `lane`, `fair`, `budget`, `priority`, `tags`, `timeout`, `max_attempts`,
                `result_ttl`.

        Raises:
            UpgradeUnfinished: it has `fair` or `budget`, and the pool admits programs that do not know them.
            ScheduleExists: another schedule has this name, and `replace` is not set.
            NoAgent: `require_agent` is set, and no live agent has the skill.
        """
        check_said(actor, reason)
        services = self._services()
        check_name("schedule", name)
        plan = build_plan(_validator(services), skill, args, **options)
        if "fair" in plan.options:
            await services.store.require(Feature.FAIR_SHARES)
        if "budget" in plan.options:
            await services.store.require(Feature.BUDGETS)
        absence = await self._absence(services, plan, required=require_agent)
        done = await schedule_store.add(
            services.store,
            name,
            plan,
            replace=replace,
            most=services.settings.queue.max_schedules,
            retry_for_s=_retry_for_s(services),
        )
        if done is not schedule_store.AddStatus.SAME:
            action = "add" if done is schedule_store.AddStatus.ADDED else "replace"
            await self._record(action, name, f"{plan.skill}, {plan.when}", reason, actor)
            if absence is not None:
                warn_of_absence(absence)
        return done.value

    async def _absence(self, services: Services, plan: Plan, *, required: bool) -> str | None:
        """Return why no live agent takes the tasks of a plan, if none does; raise `NoAgent` if one is required."""
        store, agent = services.store, plan.options.get("agent")
        if required:
            await store.read_with_retry(
                lambda: require_presence(store, plan.skill, agent), retry_for_s=_retry_for_s(services)
            )
            return None
        with suppress(StoreError):  # the addition reports it
            return await find_absence(store, plan.skill, agent)
        return None

    async def pause(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> bool:
        """Stop a schedule from firing until `resume`. Returns False if it was paused before.

        With `id_`, a new task id, the record of the change has this id.
        """
        check_said(actor, reason)
        services = self._services()
        done = await schedule_store.pause(
            services.store, check_name("schedule", name), retry_for_s=_retry_for_s(services)
        )
        if done:
            await self._record("pause", name, "", reason, actor, id_=id_)
        return done

    async def resume(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> bool:
        """Let a paused schedule fire again from its next fire time on. Returns False if it was not paused.

        With `id_`, a new task id, the record of the change has this id.
        """
        check_said(actor, reason)
        services = self._services()
        done = await schedule_store.resume(
            services.store, check_name("schedule", name), retry_for_s=_retry_for_s(services)
        )
        if done:
            await self._record("resume", name, "", reason, actor, id_=id_)
        return done

    async def delete(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> None:
        """Delete a schedule. Tasks that it submitted stay.

        With `id_`, a new task id, a repeat of the call returns when the record of the first one has this id.
        """
        check_said(actor, reason)
        services = self._services()
        try:
            await schedule_store.delete(
                services.store, check_name("schedule", name), retry_for_s=_retry_for_s(services)
            )
        except NotFound:
            if id_ is None or not await self._is_deleted(services, name, id_):
                raise
            return
        await self._record("delete", name, "", reason, actor, id_=id_)

    async def _is_deleted(self, services: Services, name: str, id_: str) -> bool:
        signer = signer_of(services.settings, place=services.keys.root)
        found = await find_accepted(services.store, signer, check_task_id(id_))
        return found is not None and found.command == RecordSchedule(action="delete", schedule=name)

    async def trigger(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> str:
        """Submit the task of a schedule now, even of a paused one, and return the task's id. The fire times stay.

        With `id_`, a new task id, a repeat of the call submits nothing.

        Raises:
            SubmitRefused: the task was refused.
        """
        check_said(actor, reason)
        services = self._services()
        found = await self._existing(services, check_name("schedule", name))
        plan, tracing = decode_plan(found.plan), active()
        with (
            nullcontext() if tracing is None else tracing.submit(plan.skill, pool=services.keys.pool, schedule=name)
        ) as span:
            task = await self._submit(services, name, plan, trace="" if span is None else span.header, id_=id_)
            if span is not None:
                span.note_task(task)
        await self._record("trigger", name, f"task {task}", reason, actor, id_=id_)
        return task

    async def _submit(self, services: Services, name: str, plan: Plan, *, trace: str, id_: str | None) -> str:
        row = _validator(services).row(submission(plan, key=None), trace=trace)
        if not isinstance(row, UnusualRow):
            row = UnusualRow(row.id, row.envelope)
        if id_ is not None:
            row = replace(row, id=check_task_id(id_))
        queue = services.settings.queue
        call = tasks.submit(
            services.keys,
            rows=[replace(row, fire=ScheduledFire(name, "", "", "", 0))],
            max_tasks=queue.max_tasks,
            max_wait_s=round(queue.max_wait_s),
            caps=submit_caps(queue, services.store.floor),
        )
        (answer,) = await services.store.call(call, retry_for_s=_retry_for_s(services))
        if answer.status == "stale":
            raise await queries.unknown(services.store, name)
        # A repeated call finds the task that its first try stored.
        if answer.status not in {"created", "duplicate"}:
            raise refusal(answer, queue)
        return row.id

    async def list(self) -> Sequence[Schedule]:
        """List all schedules, the next to fire first, paused ones last."""
        services = self._services()
        return await services.store.read_with_retry(
            lambda: queries.schedules(services.store), retry_for_s=_retry_for_s(services)
        )

    async def get(self, name: str) -> Schedule:
        """Return one schedule."""
        services = self._services()
        check_name("schedule", name)
        return await services.store.read_with_retry(
            lambda: queries.schedule(services.store, name), retry_for_s=_retry_for_s(services)
        )

    async def next_fires(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next `count` fire times in UTC; for a paused schedule, those after a resume now."""
        if not 1 <= count <= PREVIEW_MAX:
            raise InvalidInput(f"count must lie between 1 and {PREVIEW_MAX}, not {count}")
        services = self._services()
        found = await self._existing(services, check_name("schedule", name))
        now_ms = await services.store.read_with_retry(
            lambda: queries.server_ms(services.store), retry_for_s=_retry_for_s(services)
        )
        timing = decode_plan(found.plan).timing(found.anchor_ms)
        waits = not found.paused and found.next != NEVER
        first = [read_whole(found.next)] if waits else []
        later = fires(timing, max(now_ms, *first) if first else now_ms)
        return [from_instant_ms(ms) for ms in itertools.islice(itertools.chain(first, later), count)]

    async def _existing(self, services: Services, name: str) -> ScheduleRecord:
        found = await services.store.read_with_retry(
            lambda: queries.record(services.store, name), retry_for_s=_retry_for_s(services)
        )
        if found is None:
            raise await queries.unknown(services.store, name)
        return found

    async def _record(
        self, action: Any, name: str, detail: str, reason: str, actor: str | None, *, id_: str | None = None
    ) -> None:
        services = self._services()
        command = RecordSchedule(action=action, schedule=name, detail=detail[:2000])
        try:
            await send(services.store, services.settings, command, actor=actor, reason=reason, id_=id_)
        except (CommandRefused, StoreError) as failure:
            if id_ is not None and isinstance(failure, CommandRefused) and failure.status == AppendStatus.REPLAYED:
                return  # the first call has recorded it
            _log.warning("schedule_change_not_recorded", schedule=name, action=action, error=str(failure))


def _validator(services: Services) -> SubmissionValidator:
    return SubmissionValidator(services.live, ids=TaskIds(listens=False))


def _retry_for_s(services: Services) -> float:
    return services.settings.redis.command_timeout_s
