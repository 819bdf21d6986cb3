"""`orc status`: server, supervisor, agents, workers and queues on one screen."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, print_active_commands
from orchestrator.cli.terminal.failures import NOBODY_ANSWERED, say_error
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.durations import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.monitoring.backlog import Backlog
    from orchestrator.views.status import PoolStatus

SHOWN: Final = 20
"""How many agents, workers, queues and skills are shown of each, also in JSON: those that need attention most."""

commands = Commands(
    "status",
    "orc status",
    "orc status -o json",
)


@commands.itself
async def status(*, common: Globals = DEFAULTS) -> int:
    """Show server, supervisor, agents, workers and queues on one screen."""
    from orchestrator.cli.terminal.queue_rows import queue_row
    from orchestrator.views.backlog import read_backlog
    from orchestrator.views.status import read_status

    async with viewed(common) as services:
        found, backlogs = await read_status(services, limit=SHOWN), await read_backlog(services)
    commands = active_commands(found.active_commands)
    queues = [queue_row(view) for view in found.queues]
    if common.output == "table":
        _print_screen(found, backlogs.pool, commands, queues)
    else:
        record = {
            **asdict(found),
            "queues": queues,
            "active_commands": commands,
            "backlog": {
                **asdict(backlogs.pool),
                "skills": _longest(backlogs.skills),
                "skills_total": len(backlogs.skills),
            },
        }
        output.show_record(common.output, record, key="pool")
    if found.supervisor is None:
        say_error("no supervisor leads, so no task is assigned; start one with `orc up` or `orc supervisor run`")
        return NOBODY_ANSWERED
    return 0


def _longest(skills: Mapping[str, Backlog]) -> dict[str, dict[str, Any]]:
    """Return the skills with the most work that waits."""
    ordered = sorted(skills.items(), key=lambda one: (-one[1].seconds, -one[1].waiting, one[0]))
    return {name: asdict(one) for name, one in ordered[:SHOWN]}


def _print_screen(
    found: PoolStatus, backlog: Backlog, commands: list[dict[str, Any]], queues: list[dict[str, Any]]
) -> None:
    from orchestrator.cli.terminal.queue_rows import COLUMNS

    facts = [
        *_server_facts(found),
        ("pool", f"{found.pool} ({found.prefix})"),
        ("supervisor", found.supervisor or "none"),
        ("tasks now", _present_text(found.now) + _bytes_text(found.waiting_bytes)),
        ("all tasks", _counters_text(found.tasks)),
        ("backlog", _backlog_text(backlog)),
    ]
    if found.lost is not None:
        facts.append(("lost", found.lost.text))
    output.write("".join(f"{output.paint(name.ljust(10), '1')}  {output.clean(text)}\n" for name, text in facts))
    if commands:
        output.write("\n")
        print_active_commands(commands, found.totals.active_commands)
    agents = [{**asdict(agent), "workers": len(agent.workers)} for agent in found.agents[:SHOWN]]
    workers = [asdict(worker) for worker in found.workers[:SHOWN]]
    columns = ("name", "workers", "slots", "inbox", "limits", "last_seen_at", "skills")
    _print_table(agents, columns, "agent", found.totals.agents)
    _print_table(workers, ("id", "pid", "last_seen_at", "agents"), "worker", found.totals.workers)
    _print_table(queues[:SHOWN], COLUMNS, "queue", found.totals.queues)


def _server_facts(found: PoolStatus) -> list[tuple[str, str]]:
    facts = []
    for address, server in [("", found.server), *found.other_servers.items()]:
        kept = "append-only file" if server.append_only else "not persisted"
        text = f"{server.name}, up {in_words(server.uptime_s)}, {_megabytes(server.memory_bytes)}, {kept}"
        facts.append(("other", f"{address}: {text}") if address else ("server", text))
    return facts


def _backlog_text(backlog: Backlog) -> str:
    work = f"{backlog.waiting} ready, {backlog.run_s:.3g} s each" if backlog.waiting else "none ready"
    return f"{backlog.seconds:.3g} s of work per slot ({work}; {backlog.slots} slots)"


def _present_text(now: Mapping[str, int]) -> str:
    words = {"awaiting_input": "awaiting input", "dead": "dead letter"}
    present = [(count, words.get(name, name)) for name, count in now.items() if count]
    return (
        ", ".join(f"{count} {word}{'s' * (word == 'dead letter' and count > 1)}" for count, word in present) or "none"
    )


def _counters_text(counters: Mapping[str, int]) -> str:
    listed = ", ".join(f"{counters[name]} {name}" for name in _in_order(counters) if counters[name])
    return f"{listed} (counted since the pool began)" if listed else "none since the pool began"


def _in_order(counters: Mapping[str, int]) -> list[str]:
    """Return the counters in the order of a task's life, unknown ones last."""
    order = ("submitted", "assigned", "succeeded", "retried", "snoozed", "dead", "cancelled", "expired")
    return sorted(counters, key=lambda name: (order.index(name) if name in order else len(order), name))


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str, total: int) -> None:
    if rows:
        first, *others = columns
        renamed = [{title: row[first], **{name: row[name] for name in others}} for row in rows]
        output.write("\n")
        output.show_list("table", renamed, (title, *others), key=title)
    if len(rows) < total:
        output.write(f"and {total - len(rows)} more; see `orc {title}s list`\n")


def _bytes_text(waiting: int) -> str:
    return f" ({_megabytes(waiting)} wait)" if waiting else ""


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_048_576:.1f} MiB"
