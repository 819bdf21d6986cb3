"""The script loader expands includes once, reads binding blocks, and stops on anything that is not as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.script_files import Binding, ScriptError, all_scripts, load_script

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


def test_hash_is_of_the_expanded_text(tmp_path: Path) -> None:
    """A changed include changes the hash of every script that uses it, and of no other."""
    root = write(tmp_path, a="#!lua\n--@include one\n", b="#!lua\n", includes__one="local function one() end\n")
    before = [load_script(root, name).sha for name in "ab"]
    write(tmp_path, includes__one="local function one() return 1 end\n")
    after = [load_script(root, name).sha for name in "ab"]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_diamond(tmp_path: Path) -> None:
    """An include that is reached twice is emitted once, before the first that needs it."""
    root = write(
        tmp_path,
        top="#!lua\n--@include left\n--@include right\n--@include left\nreturn 1\n",
        includes__left="--@include base\nlocal left\n",
        includes__right="--@include base\nlocal right\n",
        includes__base="local base\n",
    )
    assert load_script(root, "top").text == "#!lua\nlocal base\nlocal left\nlocal right\nreturn 1\n"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"includes__a": "--@include a\n"}, "circle: top > includes/a > includes/a"),
        (
            {"includes__a": "--@include b\n", "includes__b": "--@include a\n"},
            "circle: top > includes/a > includes/b > includes/a",
        ),
    ],
    ids=["of itself", "of two"],
)
def test_cycle(tmp_path: Path, files: dict[str, str], told: str) -> None:
    """Includes that need each other are refused, with the way round in the message."""
    root = write(tmp_path, top="#!lua\n--@include a\n", **files)
    with pytest.raises(ScriptError, match=told):
        load_script(root, "top")


def test_missing(tmp_path: Path) -> None:
    """A missing script or include is named, with who wanted it."""
    root = write(tmp_path, top="#!lua\n--@include a\n", includes__a="--@include b\n")
    with pytest.raises(ScriptError, match=r"no script file includes/b\.lua \(included by top > includes/a\)"):
        load_script(root, "top")
    with pytest.raises(ScriptError, match=r"no script file gone\.lua$"):
        load_script(root, "gone")


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
        ("#!lua\n--@include a\n", r"includes/a\.lua uses KEYS or ARGV"),
    ],
)
def test_refused(tmp_path: Path, text: str, told: str) -> None:
    """A file that could be numbered or read differently by Lua and Python is refused at start."""
    root = write(tmp_path, top=text, includes__a="local a = ARGV[1]  -- str: a\n")
    with pytest.raises(ScriptError, match=told):
        load_script(root, "top")


def test_words_that_look_alike(tmp_path: Path) -> None:
    """Commands such as HKEYS are no use of KEYS."""
    root = write(tmp_path, top="#!lua\nreturn redis.call('HKEYS', MY_ARGV)\n")
    assert load_script(root, "top").args == ()


def test_all_scripts() -> None:
    """Every script of the project loads; includes are no scripts."""
    scripts = all_scripts()
    assert {"tasks/submit", "agents/register"} <= set(scripts)
    assert not [name for name in scripts if name.startswith("includes/")]
