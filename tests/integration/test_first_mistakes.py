"""Mistakes of a first try with chats and memories: refused in words that say what to give, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator import InvalidInput, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.client.client import Orchestrator
    from tests.helpers.local_team import LocalTeam

MISTAKES: Final[dict[str, Callable[[Any], Any]]] = {
    "give a list of messages, not a dict": lambda orc: orc.chat("s").append({"role": "user"}),
    "give a list of messages, not a str": lambda orc: orc.chat("s").append("hello"),
    "give a list of messages, not a NoneType": lambda orc: orc.chat("s").append(None),
    "an append takes 1 to 500 messages, not 0": lambda orc: orc.chat("s").append([]),
    "a message is a JSON object, not str": lambda orc: orc.chat("s").append(["hello"]),
    "known takes the result of an earlier hydrate, not a int": lambda orc: orc.chat("s").hydrate(known=3),
    "give a Record, as .*, not a dict": lambda orc: orc.memory("ada").store({"step": 1}),
    "give a Record, as .*, not a str": lambda orc: orc.memory("ada").store_many(["x"]),
    "give a MemoryQuery, as .*, not a str": lambda orc: orc.memory("ada").query("plan"),
    "step must be a whole number": lambda orc: orc.memory("ada").store(Record(step=1.5, kind="x", content=1)),  # type: ignore[arg-type]
    "agent 'a b' is not a valid name": lambda orc: orc.memory("a b").recent(),
}


async def test_each_mistake_is_named(team: LocalTeam) -> None:
    """The error says what was given and what to give; nothing is stored."""
    orc: Orchestrator = team.orc
    for message, call in MISTAKES.items():
        with pytest.raises(InvalidInput, match=message):
            await call(orc)
    assert (await orc.chat("s").head()).rev == 0
    assert await orc.memory("ada").recent() == []
