"""All agents of the demo in one worker: `orc worker run orchestrator.workers.demo.team:team`."""

from __future__ import annotations

from orchestrator.workers.demo.analyst import analyst
from orchestrator.workers.demo.editor import editor
from orchestrator.workers.demo.linker import linker
from orchestrator.workers.demo.reviewer import reviewer
from orchestrator.workers.demo.scanner import scanner

team = [scanner, analyst, linker, reviewer, editor]
