"""`orc memory`: list, show, export, forget."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.inputs import duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.parsing import Commands, option, option_group, positional
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.client.client import Orchestrator
    from orchestrator.memory.forgetting import ForgetPreview, RecordFilter
    from orchestrator.memory.memory import Memory
    from orchestrator.memory.model import StoredRecord
    from orchestrator.memory.owner import MemoryOwner

commands = Commands(
    "memory",
    "orc memory list ada",
    "orc memory list ada --kind observation --important 0.8",
    "orc memory show ada ID",
    "orc memory list --user customer-17",
)

Agent = Annotated[str | None, positional("AGENT", help="Name of the agent.")]


@option_group("In place of an agent")
@dataclass(frozen=True, slots=True)
class Others:
    """Options that name the memory of another owner."""

    user: Annotated[str | None, option("--user", metavar="ID")] = None
    """The memory of this user."""

    domain: Annotated[str | None, option("--domain", metavar="NAME")] = None
    """The memory of this domain."""

    global_: Annotated[bool, option("--global")] = False
    """The memory that all programs of the prefix share."""

    @property
    def given(self) -> bool:
        """True if one of them is given."""
        return self != NO_OTHERS

    def owner(self, agent: str | None) -> MemoryOwner:
        """Return the owner whose memory is meant.

        Raises:
            InvalidInput: none, or more than one.
        """
        from orchestrator.memory.owner import MemoryOwner

        if sum((agent is not None, self.user is not None, self.domain is not None, self.global_)) != 1:
            raise InvalidInput("give the name of an agent, or one of --user, --domain and --global")
        return MemoryOwner.of(agent, user=self.user, domain=self.domain, global_=self.global_)

    def memory(self, orc: Orchestrator, agent: str | None) -> Memory:
        """Return that memory."""
        return orc.memory(agent, user=self.user, domain=self.domain, global_=self.global_)


NO_OTHERS: Final = Others()
FIELDS: Final = (
    "id", "tier", "step", "kind", "agent_type", "content", "version", "importance", "action", "position", "subject",
    "simulation", "meta", "stored", "expires", "superseded_by", "has_vector",
)  # fmt: skip
COLUMNS: Final = ("id", "tier", "step", "kind", "action", "importance", "expires", "content")
SHORT: Final = 80
"""Characters of the content in the table."""


@commands.command(
    "list",
    "orc memory list ada",
    "orc memory list ada --kind observation --kind plan --from 100 --to 200",
    "orc memory list ada --important 0.8 --limit 5 -o jsonl",
)
async def list_(
    agent: Agent = None,
    /,
    *,
    kind: Annotated[tuple[str, ...], option("--kind", metavar="KIND", many=True)] = (),
    action: Annotated[tuple[str, ...], option("--action", metavar="ACTION", many=True)] = (),
    subject: Annotated[str | None, option("--subject", metavar="ID")] = None,
    since: Annotated[int | None, option("--from", metavar="STEP")] = None,
    until: Annotated[int | None, option("--to", metavar="STEP")] = None,
    important: Annotated[float | None, option("--important", metavar="NUMBER")] = None,
    tier: Annotated[Literal["stm", "im"] | None, option("--tier")] = None,
    limit: Annotated[int, option("--limit", metavar="N")] = 50,
    others: Others = NO_OTHERS,
    common: Globals = DEFAULTS,
) -> None:
    """List the records of a memory that meet all conditions, the latest steps first.

    Superseded records are not listed; `orc memory show` shows them.

    Args:
        kind: Only records of this kind; may be repeated.
        action: Only records about this action; may be repeated.
        subject: Only records about this person.
        since: Only records from this step on.
        until: Only records up to this step.
        important: Only records with at least this importance, the most important first.
        tier: Only short-term (stm) or intermediate (im) records.
        limit: How many, up to 1000 [50].
    """
    from orchestrator.memory.model import TIERS, MemoryQuery
    from orchestrator.views.memory import list_records

    owner = others.owner(agent)
    query = MemoryQuery(
        since=since,
        until=until,
        kinds=kind,
        actions=action,
        subject=subject,
        min_importance=important,
        tiers=TIERS if tier is None else (tier,),
        order="new" if important is None else "important",
        limit=limit,
    )
    async with viewed(common) as services:
        found = await list_records(services, owner, query)
    rows = [_row(record) for record in found]
    if common.output == "table":
        rows = [row | {"content": _short(record.content)} for row, record in zip(rows, found, strict=True)]
    output.show_list(
        common.output, rows, COLUMNS, key="id", empty=f"{output.clean(owner.words)} has no record that matches"
    )
    if not found.complete:
        output.say(f"the search stopped after {found.scanned} entries of the index; narrow the conditions")
    elif len(found) == limit:
        output.hint(f"these are the first {limit}; raise --limit for more")


@commands.command(
    "show",
    "orc memory show ada 01a1fdd2-27e0-7341-846c-87c976843112",
    "orc memory show ada plan -o json",
    "orc memory show plan --user customer-17",
)
async def show(
    agent: Agent = None,
    id_: Annotated[str | None, positional("ID", help="Id of the record.")] = None,
    /,
    *,
    others: Others = NO_OTHERS,
    common: Globals = DEFAULTS,
) -> None:
    """Show a record with its content, also a superseded one. It counts as no access."""
    from orchestrator.views.memory import read_record

    if others.given and id_ is None:
        agent, id_ = None, agent
    owner = others.owner(agent)
    if id_ is None:
        raise InvalidInput("give the ID of the record; `orc memory list` shows them")
    async with common.services() as services:
        record, accesses = await read_record(services, owner, id_)
    row = _row(record) | {
        "accesses": accesses.count if accesses else 0,
        "accessed": accesses.last if accesses else None,
    }
    optional = ("agent_type", "action", "position", "subject", "simulation", "meta", "superseded_by", "accessed")
    output.show_record(common.output, row, key="id", skip=optional)


@commands.command(
    "export",
    "orc memory export ada > ada.jsonl",
    "orc memory export ada | jq .content",
    "orc memory export --domain billing",
)
async def export(agent: Agent = None, /, *, others: Others = NO_OTHERS, common: Globals = DEFAULTS) -> None:
    """Print all records of a memory as JSON lines, superseded ones too: by tier, those that expire first in front.

    Records that are stored, moved or deleted meanwhile may be missing or occur twice.
    """
    from orchestrator.views.memory import read_all_records

    owner = others.owner(agent)
    async with common.services() as services, aclosing(read_all_records(services, owner)) as pages:
        async for page in pages:
            rows = [_row(record) for record in page]
            output.show_list("id" if common.output == "id" else "jsonl", rows, (), key="id")


@commands.command(
    "forget",
    "orc memory forget ada --kind note --below 0.5 --older-than 7d",
    "orc memory forget ada --subject customer-17 --dry-run",
    "orc memory forget ada --id plan --id draft --yes",
)
def forget(
    agent: Agent = None,
    /,
    *,
    id_: Annotated[tuple[str, ...], option("--id", metavar="ID", many=True)] = (),
    kind: Annotated[tuple[str, ...], option("--kind", metavar="KIND", many=True)] = (),
    action: Annotated[tuple[str, ...], option("--action", metavar="ACTION", many=True)] = (),
    subject: Annotated[str | None, option("--subject", metavar="ID")] = None,
    since: Annotated[int | None, option("--from", metavar="STEP")] = None,
    until: Annotated[int | None, option("--to", metavar="STEP")] = None,
    below: Annotated[float | None, option("--below", metavar="NUMBER")] = None,
    older_than: Annotated[str | None, option("--older-than", metavar="DURATION")] = None,
    tier: Annotated[Literal["stm", "im"] | None, option("--tier")] = None,
    every: Annotated[bool, option("--all")] = False,
    limit: Annotated[int, option("--limit", metavar="N")] = 10_000,
    dry_run: Annotated[bool, option("--dry-run")] = False,
    yes: Yes = False,
    others: Others = NO_OTHERS,
    common: Globals = DEFAULTS,
) -> int:
    """Remove the records of a memory that meet all conditions, superseded ones too. Asks for confirmation.

    It removes the records that it has counted: those that are stored later stay, and those that change meanwhile too.

    Exit code: 0 removed, 3 no record matches, 4 not confirmed, 6 some have changed and stay, 75 a task or program
    holds the agent, user or domain alone.

    Args:
        id_: Only the record with this id; may be repeated.
        kind: Only records of this kind; may be repeated.
        action: Only records about this action; may be repeated.
        subject: Only records about this person.
        since: Only records from this step on.
        until: Only records up to this step.
        below: Only records with a lower importance.
        older_than: Only records that were stored longer ago.
        tier: Only short-term (stm) or intermediate (im) records.
        every: Remove all records; instead of conditions.
        limit: How many at most, up to 100,000 [10,000].
        dry_run: Print the number and ten of the records, and change nothing.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.cli.terminal.confirm import ask
    from orchestrator.cli.terminal.failures import DONE, NOT_FOUND
    from orchestrator.memory.forgetting import RecordFilter
    from orchestrator.memory.model import TIERS

    owner = others.owner(agent)
    wanted = RecordFilter(
        ids=id_,
        kinds=kind,
        actions=action,
        subject=subject,
        since=since,
        until=until,
        below=below,
        older_than=duration_s("--older-than", older_than),
        tiers=TIERS if tier is None else (tier,),
    )
    if wanted.empty is not every:
        raise InvalidInput("give conditions, or --all for all records" if not every else "give --all or conditions")
    preview = anyio.run(_preview, partial(others.memory, agent=agent), wanted, limit, common)
    if dry_run or not preview.count:
        rows = [_row(record) for record in preview.examples]
        if common.output == "table":
            rows = [
                row | {"content": _short(record.content)} for row, record in zip(rows, preview.examples, strict=True)
            ]
        output.show_list(common.output, rows, COLUMNS, key="id", empty=f"no such record of {output.clean(owner.words)}")
        if preview.count > len(preview.examples):
            output.say(f"these are {len(preview.examples)} of {_said(preview)}")
        return DONE if dry_run else NOT_FOUND
    ask(f"remove {_said(preview)} of {output.clean(owner.words)}", yes=yes)
    return anyio.run(_forget, partial(others.memory, agent=agent), owner, preview, common)


async def _preview(
    memory: Callable[[Orchestrator], Memory], wanted: RecordFilter, limit: int, common: Globals
) -> ForgetPreview:
    async with common.client() as orc:
        return await memory(orc).preview_forget(wanted, limit=limit)


async def _forget(
    memory: Callable[[Orchestrator], Memory], owner: MemoryOwner, preview: ForgetPreview, common: Globals
) -> int:
    from orchestrator.cli.terminal.failures import DONE, PARTLY_DONE

    async with common.client() as orc:
        done = await memory(orc).forget(preview)
    if common.output == "table":
        output.write(f"removed {done.count} record{'s' * (done.count != 1)} of {output.clean(owner.words)}\n")
    else:
        record = {owner.kind: owner.id, "removed": done.count, "missing": done.missing, "changed": list(done.changed)}
        output.show_record(common.output, record, key=owner.kind)
    if done.changed:
        output.say(
            f"{len(done.changed)} have changed meanwhile and stay: {', '.join(map(output.clean, done.changed[:5]))}"
        )
    if done.more:
        output.hint("more records match; repeat the command, or raise --limit")
    return PARTLY_DONE if done.changed else DONE


def _said(preview: ForgetPreview) -> str:
    return f"{preview.count}{' or more' if preview.more else ''} record{'s' * (preview.count != 1)}"


def _row(record: StoredRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in FIELDS}
    return row | {"content": output.user_json(record.content), "meta": output.user_json(dict(record.meta))}


def _short(content: Any) -> str:
    text = bytes(output.user_json(content)).decode()
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"
