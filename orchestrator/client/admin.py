"""`orc.admin`: gives control commands and runs jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agents.programs import read_programs
from orchestrator.agents.scripts import raise_floor
from orchestrator.control import receipts
from orchestrator.control.commands import (
    CancelTasks,
    Command,
    DeleteTasks,
    PurgeQueue,
    RecordUpgrade,
    RetryTasks,
    Start,
    make_command,
)
from orchestrator.control.sending import send, this_actor
from orchestrator.control.signing import signer_of
from orchestrator.core.command_record import check_said
from orchestrator.core.durations import from_instant_ms, to_seconds
from orchestrator.core.errors import (
    CommandRefused,
    InvalidInput,
    NotFound,
    OrchestratorError,
    StoreError,
    UpgradeRefused,
)
from orchestrator.core.formats import FORMAT
from orchestrator.core.ids import check_task_id
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import read_whole
from orchestrator.tasks.families import to_retry
from orchestrator.tasks.model import TaskState, root_of
from orchestrator.tasks.records import read_record
from orchestrator.tasks.selecting import DEFAULT_LIMIT, ENDED, OPEN, RETRYABLE, WORDS_CHARS, TaskFilter, select

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from orchestrator.agents.programs import Programs
    from orchestrator.control.receipts import Receipts
    from orchestrator.core.durations import Duration
    from orchestrator.schedules.api import Schedules
    from orchestrator.services import Services

DEAD: Final = frozenset({TaskState.DEAD})
READY: Final = frozenset({TaskState.READY})


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted command.

    Attributes:
        id: of the command, as `orc control show` takes it.
        command: the command.
        at: when Redis accepted it.
        more: of a job: True if more tasks match its filter than were selected.
        older: of `finish_upgrade`: older programs that were found after the floor had risen.
    """

    id: str
    command: Command
    at: datetime
    _services: Callable[[], Services]
    more: bool = False
    older: tuple[str, ...] = ()

    async def receipts(self, *, timeout: Duration | None = 5.0, until_done: bool = False) -> Receipts:
        """Wait for the receipts.

        Args:
            timeout: seconds or a timedelta, after which it returns the receipts so far; None: no time-out.
            until_done: wait until every process is done, not only until each has answered. A job always waits so.
        """
        services = self._services()
        timeout_s = None if timeout is None else to_seconds("timeout", timeout)
        return await receipts.wait(
            services.store,
            self.id,
            self.command,
            at=self.at,
            signer=signer_of(services.settings, place=services.keys.root),
            timeout_s=timeout_s,
            until_done=until_done,
        )


class Admin:
    """Gives control commands. Each is stored before it is announced, and recorded with actor and reason.

    Every method takes `reason` and `actor` (user and host of this process by default). It raises `CommandRefused` when
    Redis does not accept the command, `InvalidInput` for an invalid value and `StoreError` when Redis does not answer.
    """

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    @property
    def schedules(self) -> Schedules:
        """The schedules of the pool."""
        from orchestrator.schedules.api import Schedules

        return Schedules(self._services)

    # Generated from orchestrator/control/commands.py by `make generate`; do not edit.

    async def stop(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        family: str | None = None,
        now: bool = False,
        refuse: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Stop starting tasks until `start`: everywhere, or of an agent, session, skill, family. Restarts end no stop.

        By default running tasks finish, and new tasks are accepted and wait.

        Args:
            agent: only this agent.
            session: only tasks of this session.
            skill: only tasks of this skill.
            family: only the family of this task: the first one above it and all below that.
            now: interrupt running tasks; they return to their queues and no attempt is counted.
            refuse: reject new tasks with the error `Stopped`.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give(
            "stop",
            {"agent": agent, "session": session, "skill": skill, "family": family, "now": now, "refuse": refuse},
            reason,
            actor,
        )

    async def start(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        family: str | None = None,
        limit: str | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """End the stop of the same scope, of an agent also its pause with an end. Other scopes stay as they are.

        With `limit`, end the pause of a limit.

        Args:
            agent: only this agent.
            session: only tasks of this session.
            skill: only tasks of this skill.
            family: only the family of this task: the first one above it and all below that.
            limit: end the pause of this limit.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give(
            "start",
            {"agent": agent, "session": session, "skill": skill, "family": family, "limit": limit},
            reason,
            actor,
        )

    async def pause_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to an agent until it is resumed. It finishes the tasks that it has; new tasks wait."""
        return await self._give("pause-agent", {"agent": agent}, reason, actor)

    async def hold_agent(self, agent: str, for_s: float, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to an agent for a time. It finishes the tasks that it has; new tasks wait.

        A longer pause replaces a shorter one. `orc start --agent` or `orc agents resume` ends it early.

        Args:
            agent: name of the agent; it need not be running yet.
            for_s: seconds until the pause ends by itself.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give("hold-agent", {"agent": agent, "for_s": for_s}, reason, actor)

    async def hold_limit(self, limit: str, for_s: float, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a limit allow no start for a time: every agent that has the limit waits.

        A longer pause replaces a shorter one. `orc start --limit` ends it early.

        Args:
            limit: name of the limit; @AGENT for an agent's own.
            for_s: seconds until the pause ends by itself.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give("hold-limit", {"limit": limit, "for_s": for_s}, reason, actor)

    async def resume_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume an agent that is paused."""
        return await self._give("resume-agent", {"agent": agent}, reason, actor)

    async def pause_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop taking tasks from a queue (`skill:NAME` or `agent:NAME`) until it is resumed. New tasks wait."""
        return await self._give("pause-queue", {"queue": queue}, reason, actor)

    async def drain_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reject new tasks for a queue (`Stopped`) until it is resumed. Waiting tasks still run."""
        return await self._give("drain-queue", {"queue": queue}, reason, actor)

    async def resume_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume a queue that is paused or drained."""
        return await self._give("resume-queue", {"queue": queue}, reason, actor)

    async def set_limit(self, limit: str, rate: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Change the rate of a limit until it is reset, also across restarts. It applies from the next start on.

        Args:
            limit: name of the limit; @AGENT for an agent's own.
            rate: starts per time, as 10/s, 10/min, 10/h or 10/d.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give("set-limit", {"limit": limit, "rate": rate}, reason, actor)

    async def reset_limit(self, limit: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reset a limit to the rate that agents or settings define."""
        return await self._give("reset-limit", {"limit": limit}, reason, actor)

    async def clear_limit(self, limit: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """End what keeps calls from a provider, and the pause of its limit: agents start tasks and call it again.

        A provider is blocked while it is throttled, its quota is used up, or it failed several times in a row.
        """
        return await self._give("clear-limit", {"limit": limit}, reason, actor)

    async def set_share(
        self, key: str, *, weight: float = 1.0, at_most: int | None = None, reason: str = "", actor: str | None = None
    ) -> Sent:
        """Set the share of a key (`submit(..., fair=KEY)`) until it is deleted.

        Each key with waiting tasks gets starts in proportion to its weight, which is 1 for a key without a share.
        A share replaces the one that the key had.

        Args:
            key: the key, as `fair=` of a submit has it.
            weight: starts in proportion to those of other keys.
            at_most: tasks of the key that run at a time.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give("set-share", {"key": key, "weight": weight, "at_most": at_most}, reason, actor)

    async def delete_share(self, key: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Delete the share of a key: its weight is 1 again, and any number of its tasks may run."""
        return await self._give("delete-share", {"key": key}, reason, actor)

    async def set_budget(
        self,
        budget: str,
        *,
        usd: float | str | None = None,
        tokens: float | str | None = None,
        calls: float | str | None = None,
        seconds: float | str | None = None,
        soft: float | None = None,
        per: str | None = None,
        at_hard: str | None = None,
        lost: str | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Set limits of a budget (`submit(..., budget=NAME)`) until it is deleted. What is not named stays as it is.

        A higher limit lets tasks start that wait for the budget. A limit below what is spent is refused.

        Args:
            budget: name of the budget, as `budget=` of a submit has it.
            usd: limit in US dollars; none: no limit.
            tokens: limit of tokens, as 2M; none: no limit.
            calls: limit of calls; none: no limit.
            seconds: limit of seconds; none: no limit.
            soft: share of a limit at which `ctx.budget.wrap_up` is true [0.8].
            per: begin anew each day (UTC), or never [ever].
            at_hard: without room, ask a person for more, or end the task [stop].
            lost: what the holds of an attempt count as that died [spent].
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give(
            "set-budget",
            {
                "budget": budget,
                "usd": usd,
                "tokens": tokens,
                "calls": calls,
                "seconds": seconds,
                "soft": soft,
                "per": per,
                "at_hard": at_hard,
                "lost": lost,
            },
            reason,
            actor,
        )

    async def delete_budget(self, budget: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Delete a budget. Refused while attempts hold amounts of it, or tasks wait for it."""
        return await self._give("delete-budget", {"budget": budget}, reason, actor)

    async def drain_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to a worker until it is resumed. It finishes the tasks that it has, and stays."""
        return await self._give("drain-worker", {"worker": worker}, reason, actor)

    async def resume_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume a worker that drains."""
        return await self._give("resume-worker", {"worker": worker}, reason, actor)

    async def stop_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a worker finish its tasks and exit, as after SIGTERM. Its host does not replace it."""
        return await self._give("stop-worker", {"worker": worker}, reason, actor)

    async def set_log_level(self, level: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Set the log level of every supervisor and worker until it is reset."""
        return await self._give("set-log-level", {"level": level}, reason, actor)

    async def reset_log_level(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reset the log level of every process to the one in its settings."""
        return await self._give("reset-log-level", {}, reason, actor)

    async def publish_config(self, key: str, value: Any, *, reason: str = "", actor: str | None = None) -> Sent:
        """Publish a configuration value to every program of the pool, also to those that start later.

        Handlers read it with `ctx.config`, other programs with `orc.config`. It is not a setting of orchestrator.toml.

        Args:
            key: name of the value, as routing.model.
            value: JSON value.
            reason: kept with the command.
            actor: user and host of this process by default.
        """
        return await self._give("publish-config", {"key": key, "value": self._json("value", value)}, reason, actor)

    async def withdraw_config(self, key: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Withdraw a published configuration value."""
        return await self._give("withdraw-config", {"key": key}, reason, actor)

    async def renew_epoch(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reject every command that was signed before now. Active commands stay active.

        Needed after a restore from a backup, because Redis has then forgotten which commands it has accepted since.
        """
        return await self._give("renew-epoch", {}, reason, actor)

    # End of the generated methods.

    async def retry(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        with_children: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Retry tasks that ended without a result, as a job of the supervisor; `receipts()` waits for its end.

        The tasks keep their ids, keys and histories; failures and deaths count from zero.

        Args:
            tasks: ids, or a filter, which selects the dead letters that match now unless it names states.
            limit: select at most this many; `more` of the result tells whether more match.
            with_children: also all tasks below them, each before its parent, which finds them by their keys.
            reason: kept with each task.
            actor: user and host of this process by default.
        """
        ids, words, more = await self._selected(tasks, DEAD, RETRYABLE, limit)
        if with_children:
            ids = await to_retry(self._services().store, ids)
            words = f"{words}, with children"[:WORDS_CHARS]
        sent = await self.give(RetryTasks(count=len(ids), filter=words), reason=reason, actor=actor, tasks=ids)
        return replace(sent, more=more)

    async def cancel(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        only_this: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Cancel tasks and, unless `only_this` is true, those below them; a filter selects open ones. See `retry`."""
        ids, words, more = await self._selected(tasks, OPEN, OPEN, limit)
        command = CancelTasks(count=len(ids), filter=words, only_this=only_this)
        sent = await self.give(command, reason=reason, actor=actor, tasks=ids)
        return replace(sent, more=more)

    async def delete(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Delete ended tasks; a filter selects dead letters unless it names states. See `retry`."""
        ids, words, more = await self._selected(tasks, DEAD, ENDED, limit)
        sent = await self.give(DeleteTasks(count=len(ids), filter=words), reason=reason, actor=actor, tasks=ids)
        return replace(sent, more=more)

    async def purge(self, queue: str, *, reason: str, actor: str | None = None) -> Sent:
        """Cancel every task that waits in a queue (`skill:NAME` or `agent:NAME`) now."""
        make_command("purge-queue", {"queue": queue, "count": 0})  # checks the name before tasks are read
        ids, words, _ = await self._selected(TaskFilter(queue=queue), READY, READY, None)
        command = PurgeQueue(queue=queue, count=len(ids), filter=words)
        return await self.give(command, reason=reason, actor=actor, tasks=ids)

    async def finish_upgrade(
        self, *, ignore_connections: bool = False, reason: str = "", actor: str | None = None
    ) -> Sent:
        """Admit no program older than this one from now on, so that features that older ones misread may be used.

        Args:
            ignore_connections: count no connections of older programs whose pool is unknown, and finish also if the
                Redis user may not list connections.
            reason: kept with the command.
            actor: user and host of this process by default.

        Returns:
            The command that records it. `older` has the older programs that started meanwhile: stop them.

        Raises:
            UpgradeRefused: older programs use the pool, or may use it because connections are unknown.
            OrchestratorError: the floor was raised, but Redis did not accept the command that records it.
        """
        services = self._services()
        check_said(actor or this_actor(), reason)
        found = await read_programs(services.store)
        older = _older(found, ignore_connections=ignore_connections)
        if older or not (found.connections_known or ignore_connections):
            raise UpgradeRefused(FORMAT, older)
        retry_for_s = services.settings.redis.command_timeout_s
        await services.store.call(raise_floor(services.keys, format_=FORMAT), retry_for_s=retry_for_s)
        services.store.floor.note(FORMAT)
        try:
            sent = await self.give(RecordUpgrade(floor=FORMAT), reason=reason, actor=actor)
        except (CommandRefused, StoreError) as failure:
            raise OrchestratorError(
                f"the floor of pool {services.keys.pool!r} was raised to {FORMAT}, but not recorded: {failure}"
            ) from failure
        # A program that started before the floor rose may have been missed, and older ones read it at their start only.
        left = _older(await read_programs(services.store), ignore_connections=ignore_connections)
        return replace(sent, older=tuple(left))

    async def _selected(
        self,
        tasks: Sequence[str] | TaskFilter,
        usual: Collection[TaskState],
        allowed: Collection[TaskState],
        limit: int | None,
    ) -> tuple[list[str], str, bool]:
        if not isinstance(tasks, TaskFilter):
            return [check_task_id(task) for task in dict.fromkeys(tasks)], "ids", False
        found = await select(self._services().store, tasks, among=allowed if tasks.states else usual, limit=limit)
        return found.ids, tasks.words, found.more

    async def _give(self, kind: str, values: dict[str, Any], reason: str, actor: str | None) -> Sent:
        return await self.give(make_command(kind, values), reason=reason, actor=actor)

    def _json(self, name: str, value: Any) -> str:
        max_depth = self._services().settings.queue.max_depth
        return encode_json(name, value, max_bytes=32_768, max_depth=max_depth).decode()

    async def _first_of(self, task: str, *, ends: bool) -> str:
        """Return the first task of a family; of one that is gone, the task itself, so that its stop can be ended."""
        record = await read_record(self._services().store, check_task_id(task), "state", "env")
        if not record.exists:
            if ends:
                return task
            raise NotFound(f"task {task} does not exist, or its retention has passed")
        first = root_of(task, record.envelope)
        if first is None:
            raise InvalidInput(
                f"an older program has submitted task {task} and stored no first task of its family; name that one"
            )
        return first

    async def give(
        self,
        command: Command,
        *,
        reason: str = "",
        actor: str | None = None,
        tasks: Sequence[str] = (),
        id_: str | None = None,
    ) -> Sent:
        """Give a command of `orchestrator.control.commands`; `tasks`: the selection of a job.

        With `id_`, a new task id, a repeat of the call is refused as replayed, and changes nothing.
        """
        services = self._services()
        retry_for_s = services.settings.redis.command_timeout_s
        if (task := getattr(command, "family", None)) is not None:
            command = command.model_copy(update={"family": await self._first_of(task, ends=isinstance(command, Start))})
        accepted = await send(
            services.store,
            services.settings,
            command,
            actor=actor,
            reason=reason,
            tasks=tasks,
            retry_for_s=retry_for_s,
            id_=id_,
        )
        at = from_instant_ms(read_whole(accepted.entry.partition("-")[0]))
        return Sent(accepted.id, command, at, self._services)


def _older(found: Programs, *, ignore_connections: bool) -> list[str]:
    """Name the programs that are older than this one."""
    return [str(each) for each in found.programs if each.is_older and (each.certain or not ignore_connections)]
