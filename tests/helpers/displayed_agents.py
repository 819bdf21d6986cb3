"""An agent whose values operators see through a function."""

from __future__ import annotations

import base64
import time
from typing import Any

from orchestrator import Agent

print("an import may print")  # noqa: T201 - it must not reach the answer


def display(skill: str, part: str, value: Any) -> Any:
    """Decode texts, hang or fail, as the value asks for."""
    text = value["text"] if part == "args" else value
    if text == "hang":
        time.sleep(600)
    if text == "fail":
        raise RuntimeError("no such encoding")
    return {"skill": skill, "decoded": base64.b64decode(text).decode(), "token": "hunter2"}


agent = Agent("decoder", display=display)


@agent.skill
async def keep(text: str) -> str:
    """Return the text."""
    return text
