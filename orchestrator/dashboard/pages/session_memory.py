"""The memories of the agents of a session, and the records of one memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput
from orchestrator.dashboard.page import page
from orchestrator.dashboard.texts import Texts, as_command, json_text
from orchestrator.dashboard.workspace_rows import session_of
from orchestrator.memory.model import TIERS, MemoryQuery
from orchestrator.memory.owner import MemoryOwner
from orchestrator.views.memory import count_records, read_record_page
from orchestrator.views.session_summary import newest_agents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.views.memory import RecordPage

AGENTS: Final = 50
RECORDS: Final = 30
CHARS: Final = 600
OWNERS: Final = ("agent", "user", "domain")


@page("/sessions/memory", "session_memory.html", narrowed=True)
async def memories(asked: PageRequest) -> Mapping[str, Any]:
    """Count the records of the agents that the newest tasks of a session had."""
    id_ = session_of(asked)
    agents = await newest_agents(asked.services, id_, limit=AGENTS)
    return {
        "id": id_,
        "agents": agents,
        "counts": await count_records(asked.services, agents),
        "tiers": TIERS,
        "commands": [as_command("orc", "sessions", "show", id_)],
    }


@page("/memory", "memory.html", narrowed=True)
async def memory(asked: PageRequest) -> Mapping[str, Any]:
    """Read one page of the records of a memory, without vectors."""
    texts, owner = Texts(), owner_of(asked)
    given = {owner.kind: owner.id}
    kind, tier = asked.text("kind"), asked.text("tier")
    found = await read_records(asked, owner)
    rows = []
    for record in found.records:
        whole = json_text(record.content)
        rows.append((record, texts.cut(whole, CHARS), len(whole.encode(errors="replace"))))
    of_agent = [given["agent"]] if "agent" in given else []
    options = {name: value for name, value in given.items() if name != "agent"}
    return {
        "given": given,
        "owner": owner.words,
        "rows": rows,
        "found": found,
        "filters": {name: value for name, value in (("kind", kind), ("tier", tier)) if value},
        "tiers": TIERS,
        "without": asked.without,
        "texts_of_part": Texts.of_part,
        "commands": [as_command("orc", "memory", "list", *of_agent, **options, kind=kind, tier=tier)],
    }


def owner_of(asked: PageRequest) -> MemoryOwner:
    """Return the owner of the memory that a query names.

    Raises:
        InvalidInput: it names none, or several.
        NotFound: the user may not see it.
    """
    given = {name: value for name in OWNERS if (value := asked.query.get(name))}
    if len(given) != 1:
        raise InvalidInput("the address names no memory; it ends as ?agent=NAME, ?user=ID or ?domain=NAME")
    asked.identity.check(agent=given.get("agent"))
    ((kind, id_),) = given.items()
    return MemoryOwner(kind, id_)


async def read_records(asked: PageRequest, owner: MemoryOwner) -> RecordPage:
    """Read the page of records that a query asks for.

    Raises:
        InvalidInput: the tier is unknown, or the cursor is none of a memory.
    """
    kind, tier = asked.text("kind"), asked.text("tier")
    if tier is not None and tier not in TIERS:
        raise InvalidInput(f"there is no tier {ascii(tier)[:40]}; there are {' and '.join(TIERS)}")
    query = MemoryQuery(
        kinds=() if kind is None else (kind,),
        tiers=TIERS if tier is None else tuple(each for each in TIERS if each == tier),
        limit=RECORDS,
    )
    return await read_record_page(asked.services, owner, query, after=asked.text("after"))
