"""An agent with a limit that its settings do not define."""

from __future__ import annotations

from orchestrator import Agent

crawler = Agent("crawler", limits=["shared"])


@crawler.skill
async def fetch() -> None:
    """Do nothing."""
