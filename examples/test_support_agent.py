"""Tests support_agent.py. Run `pytest` in a folder with both files; the fixtures start a Redis."""

from pathlib import Path

import pytest
import support_agent
from support_agent import agent, answer, answer_customer, learn, learn_manual

from orchestrator import TaskFailed
from orchestrator.workers.testing import Teams

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio."""
    return "asyncio"


async def test_a_conversation(orc_team: Teams) -> None:
    """Answers come from the documentation, and the chat tells what a further question is about."""
    async with orc_team(agent) as team:
        assert await team.run(learn) > 80
        reply = await team.run(answer, {"question": "How do I wrap text with textwrap?"}, session="ada")
        assert reply.startswith("textwrap.wrap: Wrap a single paragraph of text")
        reply = await team.run(answer, {"question": "And how do I remove common leading whitespace?"}, session="ada")
        assert reply.startswith("textwrap.dedent: ")
        reply = await team.run(answer, {"question": "Can statistics compute the median of data?"}, session="ada")
        assert reply.startswith("statistics.median: ")
        chat = await team.orc.chat("ada").hydrate()
        assert [message.data["role"] for message in chat.messages] == ["user", "assistant"] * 3
        assert await team.run(answer, {"question": "xyzzy?"}, session="bob") == "I found nothing about that."


async def test_a_crash_stores_nothing_twice(orc_team: Teams) -> None:
    """The worker dies after the handler has returned; another one runs the task again."""
    async with orc_team(agent) as team:
        await team.run(learn)
        team.crash(answer, at="result")
        await team.run(answer, {"question": "How do I find files with glob?"}, session="ada")
        chat = await team.orc.chat("ada").hydrate()
        assert [message.data["role"] for message in chat.messages] == ["user", "assistant"]


async def test_the_manual(orc_team: Teams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A customer's question is answered from the sections that fit best; those about internals are left out."""
    guide = (
        "# Backups\n\nCopies of all tasks.\n\n## Restore a backup\n\nType this:\n\n```\n# a comment\norc restore\n```\n"
    )
    pages = {"guides/backup.md": guide, "guides/locks.md": "# Locks\n\nOne task at a time.\n"}
    pages["internals/backup.md"] = "# Restore a backup\n\nHow to restore a backup, from the inside.\n"
    for page, text in pages.items():
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(text)
    monkeypatch.setattr(support_agent, "MANUAL", tmp_path)
    async with orc_team(agent) as team:
        assert await team.run(learn_manual) == f"4 sections, embedded by {support_agent.EMBEDDER!r}"
        reply = await team.run(answer_customer, {"question": "How do I restore a backup?"}, session="bob")
        assert reply.startswith("guides/backup.md, Backups: Restore a backup (0.")
        assert reply.splitlines()[1] == "Type this:"
        assert "internals" not in reply
        chat = await team.orc.chat("bob").hydrate()
        assert [message.data["role"] for message in chat.messages] == ["user", "assistant"]
        assert await team.run(answer_customer, {"question": "xyzzy?"}, session="bob") != reply


async def test_no_manual(orc_team: Teams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a copy of the example there is no manual; the task says so and is not tried again."""
    monkeypatch.setattr(support_agent, "MANUAL", tmp_path / "docs")
    async with orc_team(agent) as team:
        with pytest.raises(TaskFailed, match="there is no manual in"):
            await team.run(learn_manual)
