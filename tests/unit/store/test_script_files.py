"""The script loader reads binding blocks, hashes the expanded text, and refuses malformed files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.script_files import Binding, ScriptFiles, all_scripts, load_script
from orchestrator.store.script_records import ScriptError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
#!lua
-- Do a thing.
local pool = KEYS[1]  -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id generation
local many   = tonumber(ARGV[2])  -- int: how many
local who = ARGV[3] -- str: who
local now_arg = ARGV[4]  -- time: test override, microseconds
return many
"""


def write(root: Path, **files: str) -> Path:
    """Write script files; a double underscore in a name stands for a folder."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.lua"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


def test_bindings(tmp_path: Path) -> None:
    """Names, types and words of the binding block are read in the order of their numbers."""
    script = load_script(write(tmp_path, things__do=GOOD), "things/do")
    assert script.name == "things/do"
    assert script.keys == (Binding("pool", "key", "root of the pool's slot"),)
    assert [(arg.name, arg.type) for arg in script.args] == [
        ("rows", "rows"),
        ("many", "int"),
        ("who", "str"),
        ("now_arg", "time"),
    ]
    assert script.columns == {"rows": ("id", "generation")}


def test_one_row(tmp_path: Path) -> None:
    """An argument of type `row` is the one row of a list, and its columns have names too."""
    text = "#!lua\nlocal caller = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock\nreturn caller.lock\n"
    script = load_script(write(tmp_path, do=text), "do")
    assert script.columns == {"caller": ("op", "lock")}
    assert script.text.endswith("return caller[2]\n")


def test_hash_is_of_the_expanded_text(tmp_path: Path) -> None:
    """A changed function changes the hash of every script that uses it, and of no other."""
    module = "-- Numbers.\n\n-- One.\nlocal function one()\nend\n\n-- Two.\nlocal function two()\nend\n"
    scripts = {name: f"#!lua\n--@include numbers: {used}\n" for name, used in (("a", "one"), ("b", "two"))}
    root = write(tmp_path, includes__numbers=module, **scripts)
    before = [load_script(root, name).sha for name in "ab"]
    write(tmp_path, includes__numbers=module.replace("one()", "one(number)"))
    after = [load_script(root, name).sha for name in "ab"]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_missing(tmp_path: Path) -> None:
    """A missing script is named."""
    with pytest.raises(ScriptError, match=r"no script file gone\.lua$"):
        load_script(tmp_path, "gone")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-- no shebang\n", "does not begin with #!lua"),
        ("#!lua\nlocal a = ARGV[2]  -- str: a\n", r"leaves a gap in ARGV: \[2\]"),
        ("#!lua\nlocal a = KEYS[1]  -- key: a\nlocal b = KEYS[3]  -- key: b\n", r"leaves a gap in KEYS: \[1, 3\]"),
        ("#!lua\nlocal a = ARGV[1]  -- str: a\nlocal b = ARGV[1]  -- str: b\n", r"binds ARGV\[1\] twice"),
        ("#!lua\nlocal a = ARGV[1]\n", "outside its binding block: local a = "),
        ("#!lua\nlocal a = ARGV[1]  -- str: a\nreturn ARGV[1]\n", "outside its binding block: return ARGV"),
        ("#!lua\nreturn #KEYS\n", "outside its binding block: return #KEYS"),
        ("#!lua\nlocal a = ARGV[1]  -- int: a\n", "binds a as int, which does not fit how it is read"),
        ("#!lua\nlocal a = tonumber(ARGV[1])  -- str: a\n", "binds a as str, which does not fit"),
        ("#!lua\nlocal a = ARGV[1]  -- text: a\n", "binds a as text, which does not fit"),
        ("#!lua\nlocal a = cmsgpack.unpack(ARGV[1])  -- row: a\n", "binds a as row, which does not fit"),
        ("#!lua\nlocal a = cmsgpack.unpack(ARGV[1])[1]  -- rows: a\n", "binds a as rows, which does not fit"),
    ],
)
def test_refused(tmp_path: Path, text: str, told: str) -> None:
    """A file that could be numbered or read differently by Lua and Python is refused at start."""
    with pytest.raises(ScriptError, match=told):
        load_script(write(tmp_path, top=text), "top")


def test_words_that_look_alike(tmp_path: Path) -> None:
    """Commands such as HKEYS are no use of KEYS."""
    root = write(tmp_path, top="#!lua\nreturn redis.call('HKEYS', MY_ARGV)\n")
    assert load_script(root, "top").args == ()


def test_all_scripts() -> None:
    """Every script of the project loads; includes are no scripts."""
    scripts = all_scripts()
    assert {"tasks/submit", "agents/register"} <= set(scripts)
    assert not [name for name in scripts if name.startswith("includes/")]
    assert [script.name for script in scripts.values()] == list(scripts)
    with pytest.raises(KeyError):
        scripts["tasks/nothing"]


def test_a_script_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    """A command that needs one script reads this one alone, once; a broken one elsewhere does not concern it."""
    scripts = ScriptFiles(write(tmp_path, things__top="#!lua\nreturn 1\n", things__other="no script\n"))
    assert list(scripts) == ["things/other", "things/top"]
    assert scripts["things/top"] is scripts["things/top"]
    with pytest.raises(ScriptError):
        scripts["things/other"]
