"""Selects tasks by a filter and runs a job on them: filter options, confirmation, progress, outcome."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.failures import (
    DONE,
    FAILED,
    NOBODY_ANSWERED,
    NOT_FOUND,
    REFUSED,
    TIMED_OUT,
    joint_exit_code,
    say_error,
)
from orchestrator.cli.terminal.parsing import option, option_group
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.cli.terminal.command_options import CommandOptions
    from orchestrator.cli.terminal.options import Globals
    from orchestrator.client.admin import Sent
    from orchestrator.control.commands import Command
    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import TaskFilter
    from orchestrator.views.control import JobState
    from orchestrator.views.tasks import TaskSelection

POLL_EVERY_S: Final = 0.05
REPORT_EVERY_S: Final = 2.0

_CODES: Final = {
    "requeued": DONE,
    "still-open": DONE,
    "cancelled": DONE,
    "told-to-stop": DONE,
    "ended-before": DONE,
    "deleted": DONE,
    "refused": REFUSED,
    "damaged": REFUSED,
    "not-ended": REFUSED,
    "unknown": NOT_FOUND,
}
"""Exit code of each outcome that `supervisor.bulk_actions` counts."""


@option_group("Filter: every condition must hold")
@dataclass(frozen=True, slots=True)
class TaskConditions:
    """Conditions that select tasks."""

    skill: Annotated[str | None, option("--skill", metavar="SKILL")] = None
    """Tasks of this skill."""

    agent: Annotated[str | None, option("--agent", metavar="AGENT")] = None
    """Tasks that this agent had last, or that are addressed to it."""

    session: Annotated[str | None, option("--session", metavar="SESSION")] = None
    """Tasks of this session."""

    tag: Annotated[str | None, option("--tag", metavar="TAG")] = None
    """Tasks with this tag."""

    reason_contains: Annotated[str | None, option("--reason-contains", metavar="TEXT")] = None
    """Tasks whose reason contains this text; case is ignored."""

    error: Annotated[str | None, option("--error", metavar="TEXT")] = None
    """Tasks with a traceback that contains this text."""

    since: Annotated[str | None, option("--since", metavar="TIME|DURATION")] = None
    """Tasks that ended (open ones: were submitted) at this time or later; 1h is an hour ago."""

    until: Annotated[str | None, option("--until", metavar="TIME|DURATION")] = None
    """Tasks that ended (open ones: were submitted) before this time."""

    older_than: Annotated[str | None, option("--older-than", metavar="DURATION")] = None
    """Tasks that ended (open ones: were submitted) longer ago than this."""

    def wanted(self, states: Sequence[str] = (), *, parent: str | None = None) -> TaskFilter:
        """Return the filter.

        Raises:
            InvalidInput: a time or an id is invalid.
        """
        from orchestrator.tasks.selecting import TaskFilter

        return TaskFilter(
            skill=self.skill,
            agent=self.agent,
            session=self.session,
            tag=self.tag,
            parent=parent,
            states=tuple(states),
            reason=self.reason_contains,
            error=self.error,
            since=inputs.moment_or_ago("--since", self.since),
            until=inputs.moment_or_ago("--until", self.until),
            older_than=inputs.duration_s("--older-than", self.older_than),
        )


NO_CONDITIONS: Final = TaskConditions()


@option_group("Filter: every condition must hold")
@dataclass(frozen=True, slots=True)
class Filtering(TaskConditions):
    """Conditions that select tasks when no ids are given."""

    all_: Annotated[bool, option("--all")] = False
    """All tasks, up to --limit. Needed when no other condition is given."""

    limit: Annotated[int, option("--limit", metavar="N")] = 1000
    """Select at most this many [1000]."""

    def wanted(self, states: Sequence[str] = (), *, parent: str | None = None) -> TaskFilter:
        """Return the filter.

        Raises:
            InvalidInput: a time, an id or the limit is invalid.
        """
        inputs.check_limit(self.limit)
        return TaskConditions.wanted(self, states, parent=parent)


NO_FILTER: Final = Filtering()


@dataclass(frozen=True, slots=True)
class Selecting:
    """A filter and the options of the command that uses it.

    Attributes:
        wanted: the filter.
        among: the states that the command applies to.
        limit: maximum number of tasks, or None for no limit.
        dry_run: only print the ids that match.
        yes: do not ask for confirmation.
    """

    wanted: TaskFilter
    among: Collection[TaskState]
    limit: int | None
    dry_run: bool
    yes: bool


def selecting(
    ids: Sequence[str],
    filtering: Filtering,
    *,
    among: Collection[TaskState],
    states: Sequence[str] = (),
    dry_run: bool = False,
    yes: bool = False,
) -> Selecting | None:
    """Return the filter of a command, or None if it has ids.

    Args:
        ids: the ids.
        filtering: the filter options.
        among: the states to select from.
        states: the states of the filter.
        dry_run: only print the ids that match.
        yes: do not ask for confirmation.

    Raises:
        InvalidInput: both ids and a filter were given, or neither.
    """
    wanted = filtering.wanted(states)
    filtered = not wanted.empty or filtering.all_
    if ids and filtered:
        raise InvalidInput("give ids or a filter, not both")
    if not ids and not filtered:
        raise InvalidInput("no tasks given; give ids (`orc tasks list -o id` prints them), a filter, or --all")
    if ids and dry_run:
        raise InvalidInput("--dry-run needs a filter")
    return Selecting(wanted, among, filtering.limit, dry_run, yes) if filtered else None


def find(selecting: Selecting, common: Globals) -> TaskSelection:
    """Select the tasks that match. Blocks."""
    import anyio

    return anyio.run(_find, selecting, common)


async def _find(selecting: Selecting, common: Globals) -> TaskSelection:
    from orchestrator.views.tasks import select_tasks

    async with common.services() as services:
        return await select_tasks(services, selecting.wanted, among=selecting.among, limit=selecting.limit)


def show_dry_run(found: TaskSelection, selecting: Selecting, common: Globals) -> int:
    """Print the ids of the selected tasks, as JSON their details."""
    if common.output in {"table", "id"}:
        output.write("".join(f"{id_}\n" for id_ in found.ids))
    else:
        output.show_list(common.output, [asdict(task) for task in found.tasks], (), key="id")
    output.say(f"{_count(found)}; nothing was changed; filter: {output.clean(selecting.wanted.words)}")
    return DONE


def describe_action(verb: str, found: TaskSelection, selecting: Selecting) -> str:
    """Return the action for the confirmation."""
    return f"{verb} {_count(found)} (filter: {output.clean(selecting.wanted.words)})"


def _count(found: TaskSelection) -> str:
    tasks = f"{len(found.tasks)} task{'' if len(found.tasks) == 1 else 's'}"
    return f"{tasks}, the first of more that match" if found.more else tasks


# ------------------------------------------------------------------------------------------------------------- the job


async def carry_out(command: Command, ids: Sequence[str], options: CommandOptions, common: Globals) -> int:
    """Give a job for these tasks to the supervisor, wait for its end, and print the outcome.

    Returns:
        The exit code: 0 done, 3 unknown, 4 refused, 5 not done in time, 6 mixed, 69 no supervisor leads: the job is
        stored and runs when one starts.
    """
    from orchestrator.client.admin import Admin
    from orchestrator.views.control import JobState

    timeout_s = options.timeout_s()
    async with common.services() as services:
        sent = await Admin(lambda: services).give(command, reason=options.reason, tasks=ids)
        if options.no_wait:
            _show(sent.id, command, JobState("stored"), common)
            return DONE
        output.hint(f"command {sent.id} is stored; Ctrl-C ends the waiting, not the command")
        state = await _wait(services, sent, len(ids), timeout_s)
    _show(sent.id, command, state, common)
    see = f"`orc control show {sent.id}` shows its progress"
    if state.ended:
        return _exit_code(state)
    if not state.supervised:
        say_error(
            f"no supervisor leads, so command {sent.id} has not run yet; it is stored and runs when one starts "
            "(`orc up` or `orc supervisor run`)"
        )
        return NOBODY_ANSWERED
    say_error(f"command {sent.id} is not done after {timeout_s:g} s; it goes on, {see}")
    return TIMED_OUT


async def _wait(services: Services, sent: Sent, total: int, timeout_s: float | None) -> JobState:
    import anyio

    from orchestrator.views.control import read_job

    began_s = reported_s = time.monotonic()
    while True:
        state = await read_job(services, sent)
        now_s = time.monotonic()
        if state.ended or not state.supervised or (timeout_s is not None and now_s - began_s >= timeout_s):
            return state
        if now_s - reported_s >= REPORT_EVERY_S and state.word == "progress":
            reported_s = now_s
            output.hint(f"{state.processed} of {total} processed")
        await anyio.sleep(POLL_EVERY_S)


def _exit_code(state: JobState) -> int:
    if state.word != "done":
        return {"failed": FAILED, "refused": REFUSED}.get(state.word, TIMED_OUT)
    return joint_exit_code(_CODES[end] for end, number in state.ends.items() if number) if state.ends else DONE


def _show(id_: str, command: Command, state: JobState, common: Globals) -> None:
    if common.output == "table":
        told = {"done": "done: ", "stored": "stored", "progress": "in progress"}.get(state.word, f"{state.word}: ")
        words = ", ".join(f"{number} {end}" for end, number in state.ends.items())
        detail = (words or "nothing was selected") if state.word == "done" else words
        if state.word in {"failed", "refused"}:
            detail = state.detail
        output.write(f"command {id_}: {output.clean(command.words)}\n{told}{output.clean(detail)}\n")
        return
    record: dict[str, Any] = {"id": id_, "kind": command.kind, "words": command.words, "state": state.word}
    record["ends"] = dict(state.ends)
    output.show_record(common.output, record, key="id")
