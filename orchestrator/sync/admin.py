"""Control commands and schedules of the synchronous client: the same calls, which block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from orchestrator.tasks.selecting import DEFAULT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from orchestrator.client.admin import Admin as AsyncAdmin
    from orchestrator.client.admin import Sent as AsyncSent
    from orchestrator.control.commands import Command
    from orchestrator.control.receipts import Receipts
    from orchestrator.core.durations import Duration
    from orchestrator.schedules.api import Schedules as AsyncSchedules
    from orchestrator.schedules.model import Schedule
    from orchestrator.schedules.plans import ScheduleOptions
    from orchestrator.sync.loop_thread import LoopThread
    from orchestrator.tasks.selecting import TaskFilter
    from orchestrator.tasks.submission import Arguments, NamedSkill


class Sent:
    """A command that was accepted; as the `Sent` of `orchestrator`, but `receipts` blocks."""

    __slots__ = ("_client", "_sent", "_thread")

    def __init__(self, sent: AsyncSent, *, thread: LoopThread, client: object) -> None:
        self._sent, self._thread = sent, thread
        self._client = client  # which closes when nobody holds it any more

    def __repr__(self) -> str:
        return f"Sent({self.id!r})"

    @property
    def id(self) -> str:
        """Of the command, as `orc control show` takes it."""
        return self._sent.id

    @property
    def command(self) -> Command:
        """What was asked for."""
        return self._sent.command

    @property
    def at(self) -> datetime:
        """When it was accepted, by the server's clock."""
        return self._sent.at

    @property
    def more(self) -> bool:
        """Of a job: whether its filter means more tasks than were selected."""
        return self._sent.more

    def receipts(self, *, timeout: Duration | None = 5.0, until_done: bool = False) -> Receipts:
        """Wait for the answers; as of the asynchronous one."""
        return self._thread.call(partial(self._sent.receipts, timeout=timeout, until_done=until_done))


class Admin:
    """Gives control commands; as the `Admin` of `orchestrator`."""

    __slots__ = ("_admin", "_client", "_thread")

    def __init__(self, admin: AsyncAdmin, *, thread: LoopThread, client: object) -> None:
        self._admin, self._thread, self._client = admin, thread, client

    def _sent(self, give: Callable[[], Awaitable[AsyncSent]]) -> Sent:
        return Sent(self._thread.call(give), thread=self._thread, client=self._client)

    @property
    def schedules(self) -> Schedules:
        """Schedules: add, change and look at them."""
        return Schedules(self._admin.schedules, thread=self._thread, client=self._client)

    def stop(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        now: bool = False,
        refuse: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Start nothing more: of an agent, a session, a skill, or at all."""
        scope = {"agent": agent, "session": session, "skill": skill}
        return self._sent(partial(self._admin.stop, **scope, now=now, refuse=refuse, reason=reason, actor=actor))

    def start(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """End the stop of the same scope."""
        return self._sent(
            partial(self._admin.start, agent=agent, session=session, skill=skill, reason=reason, actor=actor)
        )

    def pause_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Give an agent nothing more; what it has been given, it does."""
        return self._sent(partial(self._admin.pause_agent, agent, reason=reason, actor=actor))

    def resume_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """End the pause of an agent."""
        return self._sent(partial(self._admin.resume_agent, agent, reason=reason, actor=actor))

    def pause_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Take nothing more out of a queue; new tasks are accepted and wait."""
        return self._sent(partial(self._admin.pause_queue, queue, reason=reason, actor=actor))

    def drain_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Refuse new tasks for a queue; what waits in it is worked off."""
        return self._sent(partial(self._admin.drain_queue, queue, reason=reason, actor=actor))

    def resume_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """End the pause and the drain of a queue."""
        return self._sent(partial(self._admin.resume_queue, queue, reason=reason, actor=actor))

    def set_limit(self, limit: str, rate: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Give a limit another rate, from the next start on."""
        return self._sent(partial(self._admin.set_limit, limit, rate, reason=reason, actor=actor))

    def reset_limit(self, limit: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a limit have the rate again that agents or settings define."""
        return self._sent(partial(self._admin.reset_limit, limit, reason=reason, actor=actor))

    def drain_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Give a worker nothing more; it finishes what it has, and stays."""
        return self._sent(partial(self._admin.drain_worker, worker, reason=reason, actor=actor))

    def resume_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """End the drain of a worker."""
        return self._sent(partial(self._admin.resume_worker, worker, reason=reason, actor=actor))

    def stop_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a worker finish what it has, and end."""
        return self._sent(partial(self._admin.stop_worker, worker, reason=reason, actor=actor))

    def set_log_level(self, level: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let all supervisors and workers log from this level on."""
        return self._sent(partial(self._admin.set_log_level, level, reason=reason, actor=actor))

    def reset_log_level(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let every process log from the level on that its settings say."""
        return self._sent(partial(self._admin.reset_log_level, reason=reason, actor=actor))

    def publish_config(self, key: str, value: Any, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a configuration value be known to all programs, and to those that start later."""
        return self._sent(partial(self._admin.publish_config, key, value, reason=reason, actor=actor))

    def withdraw_config(self, key: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a configuration value be known no more."""
        return self._sent(partial(self._admin.withdraw_config, key, reason=reason, actor=actor))

    def renew_epoch(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Refuse from now on what was signed before."""
        return self._sent(partial(self._admin.renew_epoch, reason=reason, actor=actor))

    def retry(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Let tasks run again that ended without a result."""
        return self._sent(partial(self._admin.retry, tasks, limit=limit, reason=reason, actor=actor))

    def cancel(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Cancel tasks."""
        return self._sent(partial(self._admin.cancel, tasks, limit=limit, reason=reason, actor=actor))

    def delete(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = DEFAULT_LIMIT,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Delete ended tasks for good."""
        return self._sent(partial(self._admin.delete, tasks, limit=limit, reason=reason, actor=actor))

    def purge(self, queue: str, *, reason: str, actor: str | None = None) -> Sent:
        """Cancel all that waits in a queue now."""
        return self._sent(partial(self._admin.purge, queue, reason=reason, actor=actor))


class Schedules:
    """Adds, changes and looks at schedules; as `admin.schedules` of `orchestrator`."""

    __slots__ = ("_client", "_schedules", "_thread")

    def __init__(self, schedules: AsyncSchedules, *, thread: LoopThread, client: object) -> None:
        self._schedules, self._thread, self._client = schedules, thread, client

    def add(
        self,
        name: str,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        replace: bool = False,
        reason: str = "",
        actor: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> str:
        """Add a schedule: "added", "replaced", or "same" when there is one that says the same."""
        add = partial(self._schedules.add, name, skill, args, replace=replace, reason=reason, actor=actor, **options)
        return self._thread.call(add)

    def pause(self, name: str, *, reason: str = "", actor: str | None = None) -> bool:
        """Let a schedule fire no more until `resume`; answers whether it did before."""
        return self._thread.call(partial(self._schedules.pause, name, reason=reason, actor=actor))

    def resume(self, name: str, *, reason: str = "", actor: str | None = None) -> bool:
        """Let a paused schedule fire again, from its next time on; answers whether it was paused."""
        return self._thread.call(partial(self._schedules.resume, name, reason=reason, actor=actor))

    def delete(self, name: str, *, reason: str = "", actor: str | None = None) -> None:
        """Delete a schedule; the tasks that it has submitted stay."""
        self._thread.call(partial(self._schedules.delete, name, reason=reason, actor=actor))

    def trigger(self, name: str, *, reason: str = "", actor: str | None = None) -> str:
        """Submit the task of a schedule now; answers its id."""
        return self._thread.call(partial(self._schedules.trigger, name, reason=reason, actor=actor))

    def get(self, name: str) -> Schedule:
        """One schedule."""
        return self._thread.call(self._schedules.get, name)

    def next_fires(self, name: str, count: int = 5) -> Sequence[datetime]:
        """The next fire times, in UTC."""
        return self._thread.call(self._schedules.next_fires, name, count)

    def list(self) -> Sequence[Schedule]:
        """All schedules, that which fires next in front, those that are paused last."""
        return self._thread.call(self._schedules.list)
