"""Declares the actions of `orc top`: a key, a control command about the row under the cursor, and its question.

What a job acts on is frozen when the question is asked, so that it changes no task that came later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.commands import DeleteTasks, PurgeQueue, RetryTasks, make_command
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.selecting import TaskFilter
from orchestrator.views.dead_groups import read_dead_group
from orchestrator.views.selections import UNASKED, select_waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orchestrator.control.commands import Command, Danger
    from orchestrator.services import Services
    from orchestrator.views.dead_groups import DeadGroup


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A command that waits for confirmation.

    Attributes:
        tasks: the selection of a job.
        about: what the selection is, empty if the command says it.
        name: what must be typed, or empty.
        id_: of the command, so that it is given once.
    """

    command: Command
    tasks: tuple[str, ...] = ()
    about: str = ""
    name: str = ""
    id_: str = field(default_factory=new_task_id)

    @property
    def danger(self) -> Danger:
        """Class of the command: A is given by one key, B is asked for, C needs a name and a reason."""
        return self.command.danger


@dataclass(frozen=True, slots=True)
class Action:
    """A key and what it asks for; `ask` reads what the command is about.

    Attributes:
        everywhere: it is about the pool, so that it needs no row.
    """

    key: str
    word: str
    ask: Callable[[Services, Any], Awaitable[Confirmation]] = field(repr=False)
    everywhere: bool = False


def _plain(key: str, word: str, kind: str, field_: str | None, **fields: Any) -> Action:
    """Return the action of a command whose only target is the row, or the pool."""

    async def ask(_: Services, target: Any) -> Confirmation:
        values: Mapping[str, Any] = fields if field_ is None else {**fields, field_: target}
        return Confirmation(make_command(kind, values))

    return Action(key, word, ask, everywhere=field_ is None)


async def _purge(services: Services, queue: str) -> Confirmation:
    wanted = TaskFilter(queue=queue)
    ids, more = await select_waiting(services, wanted)
    _check_found(ids)
    command = PurgeQueue(queue=queue, count=len(ids), filter=wanted.words)
    about = f"{len(ids):,} waiting tasks of {queue}" + (" (there are more)" if more else "")
    return Confirmation(command, tuple(ids), about, queue)


async def _of_group(model: type[RetryTasks | DeleteTasks], services: Services, group: DeadGroup) -> Confirmation:
    ids = await read_dead_group(services, group.skill, group.line)
    _check_found(ids)
    words = f"{TaskFilter(skill=group.skill, states=('dead',)).words}, error {group.line!r}"[:2000]
    asks = model.danger == "C" or len(ids) > UNASKED
    about = f"{len(ids):,} dead letters of {group.skill}: {group.line}"
    return Confirmation(model(count=len(ids), filter=words), tuple(ids), about, group.skill if asks else "")


def _check_found(ids: list[str]) -> None:
    if not ids:
        raise InvalidInput("no such task is there any more; nothing was changed")


QUEUES: Final = (
    _plain("p", "pause", "pause-queue", "queue"),
    _plain("d", "drain", "drain-queue", "queue"),
    _plain("r", "resume", "resume-queue", "queue"),
    Action("x", "cancel all", _purge),
)
AGENTS: Final = (
    _plain("p", "pause", "pause-agent", "agent"),
    _plain("r", "resume", "resume-agent", "agent"),
    _plain("s", "stop", "stop", "agent"),
    _plain("a", "start", "start", "agent"),
)
WORKERS: Final = (
    _plain("d", "drain", "drain-worker", "worker"),
    _plain("r", "resume", "resume-worker", "worker"),
    _plain("s", "stop", "stop-worker", "worker"),
)
DEAD: Final = (
    Action("r", "retry", partial(_of_group, RetryTasks)),
    Action("x", "delete", partial(_of_group, DeleteTasks)),
)
POOL: Final = (
    _plain("S", "STOP all", "stop", None),
    _plain("A", "start all", "start", None),
)
"""Actions of every list."""
