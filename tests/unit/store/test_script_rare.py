"""The loader moves rare functions into one that defines them when a call needs them, and refuses what would break."""

from __future__ import annotations

import pytest

from orchestrator.store.script_rare import postpone_rare
from orchestrator.store.script_records import ScriptError

SCRIPT = """\
#!lua
local pool = KEYS[1]
--@rare: tell, end_lane

local function shout(text)
  return text .. '!'
end

-- Tells.
local function tell(text)
  return shout(text)
end

local function key_of(lane) return pool .. lane end

local function end_lane(lane)
  return tell(key_of(lane))
end

local function end_task(task)
  -- Not here: tell(task).
  if task.lane then end_lane(task.lane) end
  return {tell = 'tell(x)', key = key_of('')}
end

return end_task({})
"""

MOVED = """\
#!lua
local rare_functions, rare
local pool = KEYS[1]


local function key_of(lane) return pool .. lane end

rare = function()
if rare_functions then return rare_functions end
local function shout(text)
  return text .. '!'
end
-- Tells.
local function tell(text)
  return shout(text)
end
local function end_lane(lane)
  return tell(key_of(lane))
end
rare_functions = {end_lane = end_lane}
return rare_functions
end

local function end_task(task)
  -- Not here: tell(task).
  if task.lane then rare().end_lane(task.lane) end
  return {tell = 'tell(x)', key = key_of('')}
end

return end_task({})
"""


def postpone(text: str) -> str:
    """Return the script with its rare functions moved, and runs of blank lines as one."""
    return "\n".join(postpone_rare("do", text.splitlines())) + "\n"


def test_moves() -> None:
    """Named functions and those that only they call move; others call the named ones through `rare`."""
    assert [line for line in postpone(SCRIPT).splitlines() if line] == [line for line in MOVED.splitlines() if line]


def test_without_rare_functions() -> None:
    """A script that lists none stays as it is."""
    text = SCRIPT.replace("--@rare: tell, end_lane\n", "")
    assert postpone(text) == text


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("--@rare: tell", "--@rare: whisper", r"do\.lua defines no function whisper, which it lists as rare"),
        (
            "return end_task({})",
            "return end_task(tell)",
            r"do\.lua uses tell, .* other than in a call: return end_task",
        ),
        ("local function key_of", "end_lane(pool)\n\nlocal function key_of", r"do\.lua calls end_lane above the last"),
        ("return end_task({})", "local shout = 1", r"do\.lua gives a variable the name of a function: shout"),
        ("return end_task({})", "local rare = 1", r"do\.lua gives a variable the name of a function: rare"),
    ],
)
def test_refusals(before: str, after: str, told: str) -> None:
    """What a move would break is an error."""
    with pytest.raises(ScriptError, match=told):
        postpone(SCRIPT.replace(before, after))


def test_refuses_indirect_calls() -> None:
    """A line above the place that calls a function which needs a rare one is refused too."""
    text = SCRIPT.replace("--@rare: tell, end_lane", "--@rare: late").replace(
        "return end_task({})", "end_task({})\n\nlocal function late()\nend\n\nlate()"
    )
    assert "rare().late()" in postpone(text)
    with pytest.raises(ScriptError, match=r"calls end_task above the last function that it lists as rare"):
        postpone(text.replace("late", "late, end_lane", 1))
