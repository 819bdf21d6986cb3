"""Scripts, their wrappers and the table of keys say the same: what one of them forgets fails here, not on a server."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.schedules import scripts as schedule_scripts
from orchestrator.store.keys import POOL_KEYS, SCOPE_KEYS
from orchestrator.store.script_files import ScriptFile, all_scripts
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.inbox import parse_entries
from orchestrator.tasks.model import (
    AnswerStatus,
    CancelStatus,
    DeleteStatus,
    Delivery,
    EmitStatus,
    FinishStatus,
    LeaseStatus,
    RequeueStatus,
    VerdictKind,
    WatchStatus,
)
from tests.contract.sample_calls import SAMPLES, WRAPPED

LUA = Path(str(files("lua")))
INCLUDES = sorted((LUA / "includes").glob("*.lua"))
READ_ONLY = {"locks/peek", "tasks/why", "workspace/present", "workspace/tail"}
_SHARED_STATE = {name for name in all_scripts() if name.startswith("workspace/")} - READ_ONLY
_SHARED_STATE |= {"agent_state/change", "boards/add"}
_SHARED_STATE -= {"workspace/clear", "workspace/acknowledge"}  # they make room
FULL_SERVER_REFUSES = {"schedules/put", "tasks/submit", "tasks/emit", "tasks/retry"} | _SHARED_STATE
"""What a full server must refuse: new and requeued tasks, what handlers write. The rest passes, so that it drains."""

each_script = pytest.mark.parametrize("script", all_scripts().values(), ids=list(all_scripts()))
each_include = pytest.mark.parametrize("path", INCLUDES, ids=[path.stem for path in INCLUDES])


def header(script: ScriptFile) -> list[str]:
    """The comment that opens a script."""
    lines = (LUA / f"{script.name}.lua").read_text().splitlines()[1:]
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]


def test_one_wrapper_per_script() -> None:
    """Each script has exactly one wrapper, of the same name as its verb."""
    assert sorted(call.script for _, call in WRAPPED) == sorted(all_scripts())
    assert [name for name, call in WRAPPED] == [call.script.rpartition("/")[2] for _, call in WRAPPED]


@each_script
def test_arguments(script: ScriptFile) -> None:
    """A wrapper passes exactly the declared arguments, in the declared order and of the declared types."""
    call = SAMPLES[script.name]
    assert list(call.args) == [binding.name for binding in (*script.keys, *script.args)]
    kinds: dict[str, set[type]] = {"key": {str}, "str": {str, bytes}, "time": {str}, "int": {int}, "rows": {bytes}}
    for binding in (*script.keys, *script.args):
        assert type(call.args[binding.name]) in kinds[binding.type], binding.name
    assert call.command()[:3] == ["EVALSHA", script.sha, 1]


@each_script
def test_columns(script: ScriptFile) -> None:
    """Every packed row has a value for each declared column, and no more."""
    for name, columns in script.columns.items():
        rows = msgspec.msgpack.decode(_readable(SAMPLES[script.name].args[name]))
        assert rows
        assert {len(row) for row in rows} == {len(columns)}, name


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tasks/submit", task_scripts.UnusualRow.__struct_fields__),
        ("tasks/emit", task_scripts.EmitRow._fields),
        ("schedules/skip", schedule_scripts.SkipRow._fields),
    ],
)
def test_rows_are_named(name: str, fields: tuple[str, ...]) -> None:
    """The columns of a script are the fields of its row, in order."""
    assert all_scripts()[name].columns["rows"] == fields


def test_entry_fields() -> None:
    """The order of an inbox entry's fields is the one that the reader of inboxes counts on."""
    first, requeued, later = re.findall(r"'XADD', inbox_key, '\*', ([^)]+)\)", all_scripts()["tasks/assign"].text)
    assert re.findall(r"'(\w)'", first) == ["t", "g", "e"]
    assert re.findall(r"'(\w)'", later) == ["t", "g", "a", "d", "e"]
    assert re.findall(r"'(\w)'", requeued) == ["t", "g", "a", "d", "e", "f"]
    raw = [b"1-1", [b"t", b"T", b"g", b"G", b"e", b"E"]]
    assert parse_entries("ed", [raw]) == [Delivery("ed", "1-1", "T", "G", 1, 0, b"E")]
    raw = [b"1-1", [b"t", b"T", b"g", b"G", b"a", b"1", b"d", b"2", b"e", b"E"]]
    assert parse_entries("ed", [raw]) == [Delivery("ed", "1-1", "T", "G", 1, 2, b"E")]
    raw = [b"1-1", [b"t", b"T", b"g", b"G", b"a", b"4", b"d", b"2", b"e", b"E", b"f", b"1"]]
    assert parse_entries("ed", [raw]) == [Delivery("ed", "1-1", "T", "G", 4, 2, b"E", 1)]


@each_script
def test_shebang(script: ScriptFile) -> None:
    """Undeclared slots are refused; all but what adds work passes on a full server, and what reads cannot write."""
    flags = "flags=no-writes" if script.name in READ_ONLY else "flags=allow-oom"
    assert script.text.splitlines()[0] == ("#!lua" if script.name in FULL_SERVER_REFUSES else f"#!lua {flags}")


@each_script
def test_one_key(script: ScriptFile) -> None:
    """A script declares the root of one scope, so all it touches lies in one slot; the test clock comes last."""
    assert [key.name for key in script.keys] in (["pool"], ["scope"])
    times = [arg.name for arg in script.args if arg.type == "time"]
    assert times in ([], [script.args[-1].name])


@each_script
def test_header(script: ScriptFile) -> None:
    """A script says what it does, what it answers, and what a repeat does."""
    words = "\n".join(header(script))
    assert re.search(r"^-- (status|answers)\b", words, re.MULTILINE)
    assert re.search(r"^-- repeat: ", words, re.MULTILINE)


@pytest.mark.parametrize(
    ("script", "statuses"),
    [
        ("tasks/finish", FinishStatus),
        ("tasks/emit", EmitStatus),
        ("tasks/watch", WatchStatus),
        ("tasks/cancel", CancelStatus),
        ("tasks/delete", DeleteStatus),
        ("schedules/put", schedule_scripts.PutStatus),
        ("schedules/resume", schedule_scripts.SwitchStatus),
        ("schedules/skip", schedule_scripts.SkipStatus),
        ("tasks/answer", AnswerStatus),
        ("tasks/once", ["stored", "already", "stale"]),
        ("tasks/retry", RequeueStatus),
        ("tasks/renew", LeaseStatus),
        ("tasks/submit", ["created", "duplicate", "conflict", "full", "stale", "stopped", "busy", "crowded"]),
    ],
)
def test_statuses(script: str, statuses: Any) -> None:
    """The statuses of the header are those that Python knows."""
    (line,) = [line for line in header(all_scripts()[script]) if re.match(r"-- status[,:]|--.* kept \|", line)]
    words = re.sub(r"\([^)]*\)", "", line.partition(":")[2] if "status" in line else line.partition("row:")[2])
    assert {part.split()[0] for part in words.split("|")} == {str(status) for status in statuses}


def test_verdicts() -> None:
    """The verdicts that finish explains are those that Python can send."""
    words = " ".join(line.removeprefix("--") for line in header(all_scripts()["tasks/finish"]))
    told = re.sub(r"\([^)]*\)", "|", words[words.index("verdicts:") + 9 : words.index("A task that somebody")])
    assert {part.strip() for part in told.split("|") if part.strip()} == {kind.value for kind in VerdictKind}


@each_include
def test_include(path: Path) -> None:
    """An include explains itself, defines one local function of its own name, and does nothing when loaded."""
    lines = path.read_text().splitlines()
    assert lines[0].startswith("-- ")
    outside = [line for line in lines if line and not line.startswith((" ", "--"))]
    constants = [line for line in outside if re.fullmatch(r"local \w+ = \d+", line)]
    others = [line for line in outside if line not in constants]
    assert re.fullmatch(rf"local function {path.stem}\(.*\)", others[0])
    assert others[1:] == ["end"]


@each_script
def test_includes_are_used(script: ScriptFile) -> None:
    """A script includes what it calls and calls what it includes, so its text says what it needs."""
    source = (LUA / f"{script.name}.lua").read_text()
    body = re.sub(r"^--.*$", "", source, flags=re.MULTILINE)
    included = set(re.findall(r"^--@include (\w+)$", source, re.MULTILINE))
    called = {path.stem for path in INCLUDES if re.search(rf"\b{path.stem}\(", body)}
    assert included == called


@each_include
def test_includes_of_an_include_are_used(path: Path) -> None:
    """The same for includes among themselves; and each include is used by somebody."""
    source = path.read_text()
    body = re.sub(r"^(--|local function).*$", "", source, flags=re.MULTILINE)
    included = set(re.findall(r"^--@include (\w+)$", source, re.MULTILINE))
    assert included == {other.stem for other in INCLUDES if re.search(rf"\b{other.stem}\(", body)}
    assert any(f"local function {path.stem}(" in script.text for script in all_scripts().values())


@each_script
def test_forbidden(script: ScriptFile) -> None:
    """No key scan, no rewriting of user data, nothing that hides an error."""
    code = re.sub(r"--.*$", "", script.text, flags=re.MULTILINE)
    assert re.findall(r"\bcjson\b|\bpcall\b|'SCAN'|'KEYS'|'HGETALL'|'SMEMBERS'", code) == []


def test_key_suffixes() -> None:
    """Every key that a script builds stands in the table of keys, and every kind in the table is built somewhere."""
    known = {f":{_stem(kind.suffix)}" for kind in POOL_KEYS}
    text = "\n".join(script.text for script in all_scripts().values())
    built = set(re.findall(r"\bpool \.\. '(:[^']*)'", text)) - {":"}
    # The two places where a name stands for several kinds of keys.
    built |= {f":{name}" for name in re.findall(r"put_due\(pool, '(\w+)'", text)}
    built |= {f":queue:{kind}:" for kind in re.findall(r"'(agent|skill):' \.\.", text)}
    built |= {":agent:*:workers"} if ".. ':workers'" in text else set()
    built |= {":worker:*:notes"} if ".. ':notes'" in text else set()
    assert built - {":queue:"} <= known
    in_python_only = {":format"}
    assert known - built == in_python_only


def test_lock_suffixes() -> None:
    """The same for locks: what belongs to one follows its key, and nothing else in their scripts is a key."""
    known = {kind.suffix for kind in SCOPE_KEYS}
    text = "\n".join(script.text for script in all_scripts().values() if script.name.startswith("locks/"))
    whole = set(re.findall(r"\bscope \.\. ':([^']+)'", text))
    of_locks = set(re.findall(r"\block_key \.\. ':(\w+)'", text))
    assert whole | {f"exec:{name}" for name in of_locks} <= known
    assert {"fence", "locks"} == whole
    assert {suffix.rpartition(":")[2] for suffix in known if suffix.startswith("lock:N:")} <= of_locks


def test_workspace_suffixes() -> None:
    """The same for workspaces, whose keys lie in the slot of their session."""
    others = ("exec", "lock", "fence", "window", "day", "ops", "state")
    known = {f":{_stem(kind.suffix)}" for kind in SCOPE_KEYS if not kind.suffix.startswith(others)}
    text = "\n".join(script.text for script in all_scripts().values() if script.name.startswith("workspace/"))
    built = set(re.findall(r"\bscope \.\. '(:[^']+)'", text)) - {":agent:"}
    built |= {":agent:*:kv"} if ".. ':kv'" in text else set()
    assert built == known


def test_keys_are_built_from_the_root() -> None:
    """A script derives keys from its declared root alone, so they share its slot."""
    for script in all_scripts().values():
        for key in re.findall(r"redis\.call\('[A-Z]+', ([^,)]+)", script.text):
            word = key.split(" ..")[0].strip()
            assert re.fullmatch(r"pool|scope|\w+_keys?|key|unpack\(\w+_keys|task_keys\[i\]|'\w+'|limit_key", word), (
                script.name,
                key,
            )


def _stem(suffix: str) -> str:
    """The constant part of a suffix, with `*` for a name in the middle."""
    parts = suffix.split(":")
    named = [part.isupper() and part != "TOTAL" for part in parts]
    if any(named[:-1]):
        return ":".join("*" if is_name else part for part, is_name in zip(parts, named, strict=True))
    return ":".join(parts[:-1]) + ":" if named[-1] else suffix


def _readable(packed: Any) -> bytes:
    """Packed rows whose opaque texts are marked as what they are, bytes, for a decoder that insists on UTF-8."""
    assert isinstance(packed, bytes)
    return packed.replace(b"\xdb", b"\xc6")
