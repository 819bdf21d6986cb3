"""Faults planted into a copy of the scripts, to show that a run finds them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "orchestrator"


@dataclass(frozen=True, slots=True)
class Mutation:
    """In `file`, `sound` is replaced by `faulty`."""

    file: str
    sound: str
    faulty: str
    breaks: str


MUTATIONS: Final = {
    "no-fence": Mutation(
        "tasks/finish.lua",
        "if found.gen ~= row.generation then",
        "if false then",
        "a worker whose task was taken away stores its result all the same",
    ),
    "no-memory": Mutation(
        "tasks/finish.lua",
        "if found.state ~= 'assigned' then return has_ended(found.state) and 'already' or 'stale' end",
        "",
        "a verdict that is sent twice counts twice",
    ),
    "lost": Mutation(
        "includes/reclaim.lua",
        "enqueue(waiting.ready, ready_place(task.queue, task.fair, task.rank), task.score, id)",
        "",
        "a task that is taken from a dead worker goes nowhere",
    ),
    "no-limit": Mutation(
        "includes/limit.lua",
        "local free = count - used",
        "local free = count + 5 - used",
        "a limit lets five more through",
    ),
    "no-order": Mutation(
        "includes/assigning.lua",
        "redis.call('ZRANGE', pool .. ':' .. place.name, place.read, last, 'WITHSCORES')",
        "redis.call('ZREVRANGE', pool .. ':' .. place.name, place.read, last, 'WITHSCORES')",
        "the least urgent task goes first",
    ),
    "no-lane": Mutation(
        "includes/lane.lua",
        "      break\n    end\n    if state and not has_ended(state) then break end\n",
        "    end\n",
        "when a task of a lane ends, the turn goes to all others at once",
    ),
    "no-lease": Mutation(
        "agents/lead.lua",
        "if holder and holder ~= id and not is_below_floor() then",
        "if false then",
        "any supervisor takes the lease of any other",
    ),
    "no-output-fence": Mutation(
        "tasks/emit.lua",
        "if not task.running or task.gen ~= generation then return 'stale' end",
        "",
        "an attempt whose task was taken away goes on emitting",
    ),
    "no-evidence": Mutation(
        "includes/reclaim.lua",
        ", 'death:' .. task.deaths, evidence}",
        "}",
        "a death leaves no evidence",
    ),
    "one-by-one": Mutation(
        "includes/reclaim.lua",
        "if suspects == 0 or (task.recent == 1 and suspects > 2) then return blamed, group end",
        "if suspects ~= 1 then return blamed, 0 end",
        "every task that died runs alone, so that those that died together run one after another",
    ),
    "no-room": Mutation(
        "includes/room.lua",
        "room = room - slots * backlog - math.min(suspects, live_workers(pool .. ':agent:' .. agent))",
        "room = 0 * live_workers(pool .. ':agent:' .. agent)",
        "while suspects wait, no other task is assigned",
    ),
    "every-death": Mutation(
        "includes/reclaim.lua",
        "task.blamed, task.group = judge_death(task, depth_of(found.env), crew, allowed)",
        "task.blamed = task.recent",
        "every death counts, and tasks that died run beside all others",
    ),
}


def apply_mutation(name: str, directory: Path) -> Path:
    """Make a package `orchestrator` below `directory`: links to ours, and a copy of the scripts with one fault."""
    chosen = MUTATIONS[name]
    package = directory / "orchestrator"
    package.mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if entry.name not in {"lua", "__pycache__"}:
            (package / entry.name).symlink_to(entry)
    shutil.copytree(PACKAGE / "lua", package / "lua")
    path = package / "lua" / chosen.file
    text = path.read_text()
    if text.count(chosen.sound) != 1:
        raise ValueError(f"{chosen.file} has changed: what {name} replaces is there {text.count(chosen.sound)} times")
    path.write_text(text.replace(chosen.sound, chosen.faulty))
    return directory
