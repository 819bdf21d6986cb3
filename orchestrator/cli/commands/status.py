"""`orc status`: server, supervisor, agents, workers and queues on one screen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, print_active_commands, read_desired_state
from orchestrator.cli.terminal.failures import NOBODY_ANSWERED, error_line
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = Commands(
    "status",
    "orc status",
    "orc status -o json",
)
app = commands.app


@dataclass(frozen=True, slots=True)
class Status:
    """State of the pool for the screen."""

    pool: str
    prefix: str
    supervisor: str | None
    server: dict[str, Any]
    agents: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    active_commands: list[dict[str, Any]]
    tasks: dict[str, int]


@commands.itself
async def status(*, common: Globals = DEFAULTS) -> int:
    """Show server, supervisor, agents, workers and queues on one screen."""
    async with common.services() as services:
        found = await _ask(services)
    if common.output == "table":
        _print_screen(found)
    else:
        output.show_record(common.output, asdict(found), key="pool")
    if found.supervisor is None:
        output.say(
            error_line("no supervisor leads, so no task is assigned; start one with `orc up` or `orc supervisor run`")
        )
        return NOBODY_ANSWERED
    return 0


async def _ask(services: Services) -> Status:
    from orchestrator.agents import queries as registry
    from orchestrator.cli.commands.queues import queue_rows
    from orchestrator.tasks import queries as tasks

    store = services.store
    return Status(
        pool=services.settings.pool,
        prefix=services.settings.prefix,
        supervisor=await registry.leader(store),
        server=asdict(await store.server_info()),
        agents=[asdict(agent) for agent in await registry.agents(store)],
        workers=[asdict(worker) for worker in await registry.workers(store)],
        queues=await queue_rows(services),
        active_commands=active_commands(await read_desired_state(services)),
        tasks=await tasks.counters(store),
    )


def _print_screen(found: Status) -> None:
    from orchestrator.cli.commands.queues import COLUMNS

    server = found.server
    kept = "append-only file" if server["append_only"] else "not persisted"
    facts = [
        (
            "redis",
            f"{server['version']}, up {output.span(server['uptime_s'])}, {_megabytes(server['memory_bytes'])}, {kept}",
        ),
        ("pool", f"{found.pool} ({found.prefix})"),
        ("supervisor", found.supervisor or "none"),
        ("tasks", ", ".join(f"{found.tasks[name]} {name}" for name in _in_order(found.tasks)) or "none"),
    ]
    output.write("".join(f"{output.paint(name.ljust(10), '1')}  {output.clean(text)}\n" for name, text in facts))
    if found.active_commands:
        output.write("\n")
        print_active_commands(found.active_commands)
    agents = [{**agent, "workers": len(agent["workers"])} for agent in found.agents]
    _print_table(agents, ("name", "workers", "slots", "inbox", "limits", "last_seen_at", "skills"), title="agent")
    _print_table(found.workers, ("id", "pid", "last_seen_at", "agents"), title="worker")
    _print_table(found.queues, COLUMNS, title="queue")


def _in_order(counters: dict[str, int]) -> list[str]:
    """Return the counters in the order of a task's life, unknown ones last."""
    order = ("submitted", "assigned", "succeeded", "retried", "snoozed", "dead", "cancelled", "expired")
    return sorted(counters, key=lambda name: (order.index(name) if name in order else len(order), name))


def _print_table(rows: list[dict[str, Any]], columns: tuple[str, ...], *, title: str) -> None:
    if rows:
        first, *others = columns
        renamed = [{title: row[first], **{name: row[name] for name in others}} for row in rows]
        output.write("\n")
        output.show_list("table", renamed, (title, *others), key=title)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_048_576:.1f} MiB"
