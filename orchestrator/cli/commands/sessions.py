"""`orc sessions`: list, show, delete."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.inputs import check_limit, duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.client.session import SessionEvent
    from orchestrator.client.session_actions import SessionReport
    from orchestrator.views.sessions import SessionView

commands = Commands("sessions", "orc sessions list", "orc sessions show chat-7", "orc sessions delete chat-7")

Session = Annotated[str, positional("SESSION", help="Id of the session.")]
CHAT_COLUMNS: Final = (
    "source", "messages", "bytes", "tokens", "trimmed", "gap", "summary_upto", "last_message_at", "ends_at",
)  # fmt: skip
LOCK_COLUMNS: Final = ("name", "holder", "task", "left_ms", "waiting")
NAMED: Final = 5
"""Tasks and locks that a message names."""


@commands.command("list", "orc sessions list", "orc sessions list --limit 20 -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 50, common: Globals = DEFAULTS) -> None:
    """List the sessions with the latest submit or end of a task: tasks, lane, locks, workspace, chat, last event.

    Args:
        limit: How many [50].
    """
    from orchestrator.views.sessions import list_session_rows

    check_limit(limit, 10_000)
    async with viewed(common) as services:
        found = await list_session_rows(services, limit=limit)
    rows = [asdict(one) for one in found]
    if common.output == "table":
        for row, one in zip(rows, found, strict=True):
            row["last_event"] = one.last_event.what
    columns = ("session", "last_active_at", "tasks", "lane", "locks", "workspace", "chat", "last_event", "newest")
    output.show_list(common.output, rows, columns, key="session", empty="no sessions")
    if len(found) == limit:
        output.hint(f"these are the first {limit}; raise --limit for more")


@commands.command("show", "orc sessions show chat-7", "orc sessions show chat-7 -o json")
async def show(session: Session, /, *, common: Globals = DEFAULTS) -> None:
    """Show a session: tasks by state, lanes, locks, sizes of workspace and chats, last event, records of its agents."""
    from orchestrator.views.sessions import read_session

    async with common.services() as services:
        found = await read_session(services, session)
    _print_session(found, common)
    if found.tasks:
        output.hint(f"`orc tasks list --session {output.clean(session)}` lists its tasks")


@commands.command(
    "events",
    "orc sessions events chat-7",
    "orc sessions events chat-7 --follow",
    "orc sessions events chat-7 --follow --after PLACE -o jsonl",
)
async def events(
    session: Session,
    /,
    *,
    follow: Annotated[bool, option("--follow", "-f")] = False,
    after: Annotated[str | None, option("--after", metavar="PLACE")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """List the events of all tasks of a session and of its workspace, oldest first; with --follow also further ones.

    Values that tasks emitted or stored are not shown: `orc tasks watch ID` and `orc workspace events` show them.

    Args:
        follow: Wait for more events until Ctrl-C.
        after: Continue after this place; -o json, -o jsonl and -o id print places.
    """
    if follow and common.output == "json":
        raise InvalidInput("--follow prints no single document; use -o jsonl")
    from orchestrator.cli.terminal.waiting import wait_through_outages

    rows: list[dict[str, Any]] = []
    shown = False
    async with common.client() as orc, wait_through_outages(orc):
        found = orc.session(session).events(after, block=None if follow else 0)
        async with aclosing(found) as events:
            async for event in events:
                row = _event_row(event)
                if common.output == "json":
                    rows.append(row)
                elif common.output == "table":
                    output.write(_event_line(row) + "\n")
                else:
                    output.write(f"{event.id}\n" if common.output == "id" else output.json_text(row))
                shown = True
    if common.output == "json":
        output.show_list("json", rows, (), key="id", empty="")
    elif not shown:
        where = "no events" if after is None else "no events after that place"
        output.say(f"session {output.clean(session)} has {where}; `orc sessions list` shows the sessions")


def _event_row(event: SessionEvent) -> dict[str, Any]:
    from orchestrator.workspace.model import WorkspaceEvent

    row: dict[str, Any] = {"id": event.id, "at": event.at, "task": event.task, "kind": event.kind}
    what = event.event
    if isinstance(what, WorkspaceEvent):
        return row | {"agent": what.agent or None, "revision": what.revision}
    progress = None if what.progress is None else asdict(what.progress)
    return row | {"attempt": what.attempt, "agent": what.agent, "progress": progress, "reason": what.reason}


def _event_line(row: dict[str, Any]) -> str:
    words = [output.clock(row["at"]), row["task"] or "workspace", row["kind"]]
    words += [f"agent={output.clean(row['agent'])}"] if row["agent"] else []
    if progress := row.get("progress"):
        words.append(f"{progress['done']:g}" + (f"/{progress['total']:g}" if progress["total"] else ""))
    return " ".join([*words, *([output.clean(row["reason"])] if row.get("reason") else [])])


@commands.command(
    "delete",
    "orc sessions delete chat-7",
    'orc sessions delete chat-7 --cancel --timeout 1m --reason "asked by the customer"',
    "orc sessions delete chat-7 --dry-run",
)
def delete(
    session: Session,
    /,
    *,
    cancel: Annotated[bool, option("--cancel")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    dry_run: Annotated[bool, option("--dry-run")] = False,
    reason: Reason = "",
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Delete a session: its workspace with the events, its chats and its tasks. Asks for confirmation.

    A repeat continues after a failure. Memories of agents stay, because they belong to no session.

    Exit code: 0 deleted, 3 nothing is stored, 4 a task has not ended, or not confirmed, 5 timed out waiting for the
    cancelled tasks, 75 a lock of the session is held.

    Args:
        cancel: Cancel the tasks that have not ended, and wait for their ends.
        timeout: With --cancel: how long to wait.
        dry_run: Show the session and change nothing.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.cli.terminal.confirm import ask
    from orchestrator.cli.terminal.failures import DONE, CommandAborted

    if timeout is not None and not cancel:
        raise InvalidInput("--timeout needs --cancel")
    timeout_s = duration_s("--timeout", timeout)
    if dry_run:
        anyio.run(_show, session, common)
        return DONE
    found = anyio.run(_read, session, common)
    if found.open_tasks and not cancel:
        raise CommandAborted(
            f"{_count(len(found.open_tasks), 'task')} of session {session!r} have not ended: "
            f"{_first(found.open_tasks)}; cancel them with --cancel, or wait"
        )
    ask(_action(found), yes=yes)
    return anyio.run(_delete, found, timeout_s, reason, common)


def _print_session(found: SessionView, common: Globals) -> None:
    record = asdict(found)
    for held in record["locks"]:
        del held["at"], held["nonce"]
    optional = ("dropped", "open_tasks", "lanes", "workspace", "last_event")
    if common.output != "table":
        output.show_record(common.output, record, key="session", skip=optional)
        return
    chats, memories, held_locks = record.pop("chats"), record.pop("memories"), record.pop("locks")
    output.show_record("table", record, key="session", skip=optional)
    if held_locks:
        output.show_list("table", held_locks, LOCK_COLUMNS, key="name")
    if chats:
        output.show_list("table", chats, CHAT_COLUMNS, key="source")
    if memories:
        rows = [{"agent": agent, **tiers} for agent, tiers in memories.items()]
        output.show_list("table", rows, ("agent", *next(iter(memories.values()))), key="agent")


async def _show(session: str, common: Globals) -> None:
    await show(session, common=common)


async def _read(session: str, common: Globals) -> SessionView:
    from orchestrator.views.sessions import read_session

    async with common.services() as services:
        return await read_session(services, session)


def _action(found: SessionView) -> str:
    stored = [_count(found.tasks, "task")]
    if found.open_tasks:
        stored[0] += f" ({len(found.open_tasks)} to be cancelled)"
    if found.workspace is not None:
        stored.append(f"a workspace of {_count(found.workspace.items, 'item')}")
    if found.chats:
        messages = sum(chat.messages for chat in found.chats)
        stored.append(f"{_count(len(found.chats), 'chat')} of {_count(messages, 'message')}")
    return f"delete session {output.clean(found.session)}: {', '.join(stored)}"


async def _delete(found: SessionView, timeout_s: float | None, reason: str, common: Globals) -> int:
    from orchestrator.cli.terminal.failures import DONE, CommandAborted, TryAgain, say_error
    from orchestrator.client.session_actions import delete_session

    session = found.session
    async with common.client() as orc:
        if found.open_tasks:
            from orchestrator.cli.terminal.waiting import wait_for_all, wait_through_outages

            async with wait_through_outages(orc):
                for id_ in found.open_tasks:
                    await orc.task(id_).cancel(reason)
                ends = await wait_for_all([orc.task(id_) for id_ in found.open_tasks], timeout_s)
            if late := [end.id for end in ends if end.timed_out]:
                raise TimeoutError(
                    f"{_count(len(late), 'task')} did not end in time: {_first(late)}; nothing was deleted"
                )
        report = await delete_session(orc.services, orc.locks(), session, reason=reason)
    if report.open_tasks:
        named = _first([f"{id_} ({state})" for id_, state in report.open_tasks.items()])
        raise CommandAborted(f"session {session!r} has tasks that have not ended: {named}; nothing was deleted")
    if report.locks:
        named = _first([f"{lock.name} of {lock.holder or 'the next waiter'}" for lock in report.locks])
        raise TryAgain(f"locks of session {session!r} are held: {named}; nothing was deleted")
    if report.unrecorded:
        say_error(f"the session was deleted, which was not recorded: {report.unrecorded}")
    if report.copies:
        number = _count(report.copies, "chat")
        output.say(f"copies of {number} in a second storage go when a program next reads or changes them with it")
    if report.left:
        output.say(f"{_count(report.left, 'task')} submitted meanwhile stay")
    _print(session, report, common)
    return DONE


def _print(session: str, report: SessionReport, common: Globals) -> None:
    if common.output == "table":
        output.write(f"deleted session {output.clean(session)}: {report.words}\n")
    else:
        record = {name: getattr(report, name) for name in ("tasks", "workspace", "chats", "left")}
        record = {"session": session, **record}
        output.show_record(common.output, record, key="session")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])
