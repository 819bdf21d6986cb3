"""Checks the chats of sessions: counts, gaps, ids, and the list of the chats of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerRefused
from orchestrator.core.ids import decode_foreign
from orchestrator.repair import scripts
from orchestrator.repair.findings import RepairFinding
from orchestrator.repair.scope_check import CALLS_AT_ONCE, ScopeCheck, run_checks
from orchestrator.store.keys import CHATS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.repair.scope_key import ScopeKey
    from orchestrator.store.store import Store

SOURCES_AT_ONCE: Final = 100
_MESSAGES, _META = "chat:SRC:q", "chat:SRC:meta"


async def check_chats(store: Store, known: Sequence[ScopeKey], *, repair: bool) -> AsyncIterator[list[RepairFinding]]:
    """Check each chat with its messages, each that has counts and no messages, and each list of chats."""
    whole = {(key.keys, key.name): None for key in known if key.kind.suffix == _MESSAGES}
    counted = [(key.keys, key.name) for key in known if key.kind.suffix == _META and (key.keys, key.name) not in whole]
    there = await store.pipeline(
        [("EXISTS", keys.key(keys.chat_part(decode_foreign(source), "q"))) for keys, source in counted]
    )
    whole |= {chat: None for chat, exists in zip(counted, there, strict=True) if exists == 0}
    checks, at_once = [(keys, source, 0) for keys, source in whole], CALLS_AT_ONCE
    while checks:
        batch, checks = checks[:at_once], checks[at_once:]
        calls = [scripts.check_chat(keys, source=name, first=at, repair=repair) for keys, name, at in batch]
        try:
            answers = await store.call_all(calls)
        except ServerRefused as refusal:
            # Go on one by one, to find the chat that Redis refuses.
            if at_once == 1:
                yield [RepairFinding("unreadable", batch[0][0].root, str(refusal), repaired=False)]
            else:
                at_once, checks = 1, [*batch, *checks]
            continue
        for (keys, name, _), answer in zip(batch, answers, strict=True):
            yield [RepairFinding(each.code, keys.root, each.place, repaired=each.repaired) for each in answer.findings]
            if answer.next:
                checks.append((keys, name, answer.next))
    # A session has at most 500 chats.
    lists = [key.keys for key in known if key.kind.suffix == CHATS]
    replies = await store.pipeline([("HKEYS", keys.key(CHATS)) for keys in lists])
    found_lists = [(keys, sources) for keys, sources in zip(lists, replies, strict=True) if isinstance(sources, list)]
    listed = [
        ScopeCheck(keys, scripts.check_chats(keys, rows=sources[first : first + SOURCES_AT_ONCE], repair=repair))
        for keys, sources in found_lists
        for first in range(0, len(sources), SOURCES_AT_ONCE)
    ]
    async for _, found in run_checks(store, listed):
        yield found
