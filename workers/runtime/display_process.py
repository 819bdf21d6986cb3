"""Runs the `display` function of an agent for one value; the dashboard starts this program and ends it in time.

Its arguments are a skill, a part and agents as MODULE:AGENT; the value comes through the standard input. What the
agents print at their import goes nowhere.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from orchestrator.core.payload import decode_json
from orchestrator.core.reading import read_text
from orchestrator.core.redaction import NO_DISPLAY
from orchestrator.workers.runtime.loading import load_agents

MOST_CHARS: Final = 64 * 1024
"""Characters of what is shown."""


def main(skill: str, part: str, *targets: str) -> int:
    """Write what operators see of a value as JSON text."""
    answer = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    data = sys.stdin.buffer.read()
    display = next((agent.display for agent in load_agents(targets) if skill in agent.skills and agent.display), None)
    if display is None:
        return NO_DISPLAY
    shown = display(skill, part, decode_json(data))
    text = shown if isinstance(shown, str) else read_text(msgspec.json.encode(shown, enc_hook=str))
    with os.fdopen(answer, "wb") as pipe:
        pipe.write(text[:MOST_CHARS].encode(errors="backslashreplace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
