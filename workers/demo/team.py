"""All agents of the demo, for one worker that runs the whole team: `orc worker run workers.demo.team:team`."""

from __future__ import annotations

from workers.demo.analyst import analyst
from workers.demo.editor import editor
from workers.demo.linker import linker
from workers.demo.reviewer import reviewer
from workers.demo.scanner import scanner

team = [scanner, analyst, linker, reviewer, editor]
