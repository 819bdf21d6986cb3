"""Names of queues: `skill:NAME` and `agent:NAME`."""

from __future__ import annotations

from typing import NamedTuple


class QueueName(NamedTuple):
    """The queue of a skill or of an agent.

    Attributes:
        kind: `skill` or `agent`.
    """

    kind: str
    name: str

    @classmethod
    def of_skill(cls, skill: str) -> QueueName:
        """Return the queue that every agent with the skill takes tasks from."""
        return cls("skill", skill)

    @classmethod
    def of_agent(cls, agent: str) -> QueueName:
        """Return the queue that one agent takes tasks from."""
        return cls("agent", agent)

    @classmethod
    def parse(cls, text: str) -> QueueName:
        """Split `skill:NAME` or `agent:NAME`."""
        kind, _, name = text.partition(":")
        return cls(kind, name)

    @property
    def skill(self) -> str | None:
        """The skill, None for the queue of an agent."""
        return self.name if self.kind == "skill" else None

    @property
    def agent(self) -> str | None:
        """The agent, None for the queue of a skill."""
        return self.name if self.kind == "agent" else None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
