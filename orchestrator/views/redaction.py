"""Hides the data of redacted skills from what operators see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.core.reading import read_text
from orchestrator.core.redaction import hidden_json

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.why.model import TaskInfo


async def is_redacted(services: Services, skill: str) -> bool:
    """Return whether a worker has declared the skill redacted."""
    return bool(await services.store.execute("SISMEMBER", services.keys.redacted, skill))


async def redacted_skills(services: Services) -> frozenset[str]:
    """Return the names of the redacted skills."""
    names = await services.store.execute("SMEMBERS", services.keys.redacted)
    return frozenset(read_text(name) for name in names)


def without_data(info: TaskInfo) -> TaskInfo:
    """Return a task with the sizes of its arguments and result in their place."""
    result = None if info.result is None else hidden_json(info.result)
    return replace(info, args=hidden_json(info.args), result=result)
