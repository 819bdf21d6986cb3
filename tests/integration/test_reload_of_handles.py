"""A reload of settings reaches the handles that a program holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import InvalidInput, Record, WorkspaceFull

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_a_reload_reaches_held_handles(team: LocalTeam) -> None:
    """Caps of a chat, a workspace and a memory are those of now, and so is the size of a value."""
    orc, live = team.orc, team.orc.services.live
    chat, memory = orc.chat("s"), orc.memory("ann")
    async with orc.workspace("s").edit("page") as workspace:
        await workspace.set("a", "x" * 100)
        await memory.store(Record(step=1, kind="plan", content="x" * 100))
        before = live.current
        live.replace(
            before.model_copy(
                update={
                    "chat": before.chat.model_copy(update={"max_messages": 3, "max_message_bytes": 100}),
                    "workspace": before.workspace.model_copy(update={"max_items": 1}),
                    "memory": before.memory.model_copy(update={"max_stm_records": 1, "max_record_bytes": 100}),
                }
            ),
            generation=2,
        )
        await chat.append([{"n": number} for number in range(10)])
        assert (await chat.head()).count == 3
        with pytest.raises(InvalidInput, match="100"):
            await chat.append([{"text": "x" * 100}])
        with pytest.raises(WorkspaceFull, match=r"workspace\.max_items = 1"):
            await workspace.set("b", 1)
        with pytest.raises(InvalidInput, match="100"):
            await memory.store(Record(step=2, kind="plan", content="x" * 100))
        await memory.store(Record(step=2, kind="plan", content="y"))
        assert (await memory.stats()).stm.records == 1
