"""Scripts, their wrappers and the table of keys say the same: what one of them forgets fails here, not on a server."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.doctor.commands import READING
from orchestrator.limits.scripts import CallStatus, SettleStatus
from orchestrator.schedules import scripts as schedule_scripts
from orchestrator.store.key_kinds import POOL_KEYS, SCOPE_KEYS
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
from tests.helpers.cases import each_case

LUA = Path(__file__).parents[2] / "lua"
INCLUDES = sorted((LUA / "includes").glob("*.lua"))
READ_ONLY = {
    "chat/page",
    "chat/since",
    "locks/peek",
    "memory/narrow",
    "memory/near",
    "memory/query",
    "tasks/list_dead",
    "tasks/measure_bytes",
    "tasks/why",
    "workspace/present",
    "workspace/tail",
}
READ_ONLY |= {name for name in all_scripts() if name.startswith("monitoring/")}
_SHARED_STATE = {name for name in all_scripts() if name.startswith(("workspace/", "chat/"))} - READ_ONLY
_SHARED_STATE |= {"agent_state/change", "boards/add", "subjects/note", "simulations/index", "simulations/push"}
_SHARED_STATE |= {"memory/embed", "memory/select", "memory/store", "memory/supersede", "memory/touch", "memory/update"}
_SHARED_STATE -= {"workspace/clear", "workspace/acknowledge"}  # they make room
_SHARED_STATE -= {"chat/clear", "chat/erase", "chat/pop", "chat/truncate", "chat/touch", "chat/saved"}
FULL_SERVER_REFUSES = {
    "agents/count",
    "agents/describe",
    "backup/begin",
    "backup/restore_keys",
    "backup/restore_output",
    "backup/restore_tasks",
    "schedules/put",
    "tasks/submit",
    "tasks/emit",
    "tasks/join",
    "tasks/retry",
} | _SHARED_STATE
"""What a full server must refuse: new and requeued tasks, what handlers write. The rest passes, so that it drains."""

SCRIPTS = all_scripts().values()
_DEFINITION = re.compile(r"^local (?:function (\w+)\(|(\w+) = )", re.MULTILINE)


def source(script: ScriptFile) -> str:
    """The file of a script, before its includes are expanded."""
    return (LUA / f"{script.name}.lua").read_text()


def header(script: ScriptFile) -> list[str]:
    """The comment that opens a script."""
    lines = source(script).splitlines()[1:]
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]


def included(text: str) -> set[str]:
    """The functions that include lines name."""
    lines = re.findall(r"^--@include \w+: (.*)$", text, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


def code(text: str) -> str:
    """Lua without its comments."""
    return re.sub(r"--.*$", "", text, flags=re.MULTILINE)


FUNCTIONS = {
    path.stem: {name or constant for name, constant in _DEFINITION.findall(path.read_text())} for path in INCLUDES
}
"""The functions and constants of each module."""
CONSTANTS = {constant for path in INCLUDES for _, constant in _DEFINITION.findall(path.read_text()) if constant}


def test_one_wrapper_per_script() -> None:
    """Each script has exactly one wrapper, of the same name as its verb."""
    assert sorted(call.script for _, call in WRAPPED) == sorted(all_scripts())
    assert [name for name, call in WRAPPED] == [call.script.rpartition("/")[2] for _, call in WRAPPED]


def test_arguments() -> None:
    """A wrapper passes exactly the declared arguments, in the declared order and of the declared types."""
    kinds: dict[str, set[type]] = {"key": {str}, "str": {str, bytes}, "time": {str}, "int": {int}}
    kinds |= {"rows": {bytes}, "row": {bytes}}
    for script in SCRIPTS:
        call = SAMPLES[script.name]
        assert list(call.args) == [binding.name for binding in (*script.keys, *script.args)], script.name
        for binding in (*script.keys, *script.args):
            assert type(call.args[binding.name]) in kinds[binding.type], (script.name, binding.name)
        assert call.command()[:3] == ["EVALSHA", script.sha, 1], script.name


def test_columns() -> None:
    """Every packed row has a value for each declared column, and no more; an argument of type `row` is one row."""
    for script in SCRIPTS:
        for name, columns in script.columns.items():
            rows = msgspec.msgpack.decode(_readable(SAMPLES[script.name].args[name]))
            assert rows, (script.name, name)
            assert {len(row) for row in rows} == {len(columns)}, (script.name, name)
            assert len(rows) == 1 or next(arg.type for arg in script.args if arg.name == name) == "rows"


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


def test_shebang() -> None:
    """Undeclared slots are refused; all but what adds work passes on a full server, and what reads cannot write."""
    for script in SCRIPTS:
        flags = "flags=no-writes" if script.name in READ_ONLY else "flags=allow-oom"
        expected = "#!lua" if script.name in FULL_SERVER_REFUSES else f"#!lua {flags}"
        assert script.text.splitlines()[0] == expected, script.name


def test_read_only_scripts() -> None:
    """Replicas run the scripts that change nothing, except the one that must ask the primary what it lacks."""
    for script in SCRIPTS:
        called = set(re.findall(r"redis\.p?call\('(\w+)'", script.text)) - {"TIME"}
        assert called, script.name
        reads = called <= READING and script.name != "tasks/find_lost"
        assert reads == (script.name in READ_ONLY), (script.name, called - READING)
        assert script.reads_only == (script.name in READ_ONLY), script.name


def test_one_key() -> None:
    """A script declares the root of one scope, so all it touches lies in one slot; the test clock comes last."""
    for script in SCRIPTS:
        assert [key.name for key in script.keys] in (["pool"], ["scope"]), script.name
        times = [arg.name for arg in script.args if arg.type == "time"]
        assert times in ([], [script.args[-1].name]), script.name


def test_header() -> None:
    """A script says what it does, what it returns, and what a repeat does."""
    for script in SCRIPTS:
        words = "\n".join(header(script))
        assert re.search(r"^-- (status|returns)\b", words, re.MULTILINE), script.name
        assert re.search(r"^-- repeat: ", words, re.MULTILINE), script.name


@each_case(
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
        ("tasks/effect", ["stored", "changed", "full", "stale"]),
        ("tasks/join", ["registered", "stored", "stale", "cycle", "crowded", "unknown"]),
        ("limits/take", CallStatus),
        ("limits/settle", SettleStatus),
        ("tasks/retry", RequeueStatus),
        ("tasks/renew", LeaseStatus),
        (
            "tasks/submit",
            [
                "created",
                "duplicate",
                "conflict",
                "full",
                "stale",
                "stopped",
                "busy",
                "crowded",
                "lost",
                "cancelling",
                "unfunded",
                *("withheld", "gone"),
                "invalid",
            ],
        ),
    ],
)
def test_statuses(script: str, statuses: Any) -> None:
    """The statuses of the header are those that Python knows."""
    lines = header(all_scripts()[script])
    (first,) = [i for i, line in enumerate(lines) if re.match(r"-- status[,:]|--.* kept \|", line)]
    more = itertools.takewhile(lambda line: not re.match(r"-- (returns|repeat)\b", line), lines[first + 1 :])
    text = " ".join(line.removeprefix("--").strip() for line in (lines[first], *more))
    words = re.sub(r"\([^)]*\)", "", text.partition("row:")[2] if "row:" in text else text.partition(":")[2])
    assert {part.split()[0] for part in words.split("|")} == {str(status) for status in statuses}


def test_verdicts() -> None:
    """The verdicts that finish explains are those that Python can send."""
    words = " ".join(line.removeprefix("--") for line in header(all_scripts()["tasks/finish"]))
    told = re.sub(r"\([^)]*\)", "|", words[words.index("verdicts:") + 9 : words.index("status, per row")])
    assert {part.strip() for part in told.split("|") if part.strip()} == {kind.value for kind in VerdictKind}


def test_modules() -> None:
    """A module opens with its subject; each of its functions has a comment, and nothing runs when it is loaded."""
    for path in INCLUDES:
        opening, *blocks = path.read_text().rstrip("\n").split("\n\n")
        assert all(line.startswith("--") for line in opening.splitlines()), path.stem
        for item in re.split(r"\n\n(?=--|local )", "\n\n".join(blocks)):
            lines = [line for line in item.splitlines() if line and not line.startswith(" ")]
            constant = re.fullmatch(r"local \w+ = \S+", lines[-1])
            assert constant or (lines[0].startswith("-- ") and lines[-1] == "end"), (path.stem, item)
            assert sum(not line.startswith("--") for line in lines) == (1 if constant else 2), (path.stem, item)
    assert len({name for names in FUNCTIONS.values() for name in names}) == sum(map(len, FUNCTIONS.values()))


def _uses(text: str, name: str) -> bool:
    """Return whether a script calls a function of a module, or reads a constant of it."""
    return re.search(rf"\b{name}\b" if name in CONSTANTS else rf"\b{name}\(", code(text)) is not None


def test_includes_are_used() -> None:
    """A script includes the functions and constants that it uses and no others, so its text says what it needs."""
    functions = {name for names in FUNCTIONS.values() for name in names}
    for script in SCRIPTS:
        text = source(script)
        called = {name for name in functions if _uses(text, name)}
        assert included(text) == called, script.name


def test_includes_of_modules_are_used() -> None:
    """The same for modules among themselves; and each function is part of a script."""
    texts = [script.text for script in SCRIPTS]
    for path in INCLUDES:
        text, own = path.read_text(), FUNCTIONS[path.stem]
        others = {name for module, names in FUNCTIONS.items() for name in names if module != path.stem}
        assert included(text) == {name for name in others if _uses(text, name)}, path.stem
        for name in own:
            assert any(re.search(rf"^local (function )?{name}\b", each, re.MULTILINE) for each in texts), name


def test_forbidden() -> None:
    """No key scan, no rewriting of user data, nothing that hides an error, but of counters, caps, hints and types."""
    counter = re.compile(
        r"^local function (?:increment|read_bytes|count_queues|is_full|mark_cap|unmark_caps|add_bytes|add_hint"
        r"|notify_supervisor|cancel_next|read_budget|read_hold)\(.*?^end$",
        re.MULTILINE | re.DOTALL,
    )
    for script in SCRIPTS:
        text = counter.sub("", code(script.text))
        found = re.findall(r"\bcjson\b|\bpcall\b|'SCAN'|'KEYS'|'HGETALL'|'SMEMBERS'", text)
        assert found == [], script.name


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
    # Written without a script, by workers and by the dashboard.
    assert known == built - {":queue:"} | {
        ":failed_starts",
        ":web:users",
        ":web:tokens",
        ":web:key",
        ":web:link:",
        ":web:request:",
    }


def test_lock_suffixes() -> None:
    """The same for locks: what belongs to one follows its key, and nothing else in their scripts is a key."""
    known = {kind.suffix for kind in SCOPE_KEYS}
    text = "\n".join(script.text for script in all_scripts().values() if script.name.startswith("locks/"))
    whole = set(re.findall(r"\bscope \.\. ':([^']+)'", text))
    of_locks = set(re.findall(r"\block_key \.\. ':(\w+)'", text))
    assert whole | {f"exec:{name}" for name in of_locks} <= known
    assert {"exec", "exec:fence", "fence", "locks"} == whole
    assert {suffix.rpartition(":")[2] for suffix in known if suffix.startswith("lock:N:")} <= of_locks


def test_workspace_suffixes() -> None:
    """The same for workspaces, whose keys lie in the slot of their session."""
    others = (
        *("exec", "lock", "fence", "usage", "window", "day", "state", "chat", "stm", "im", "ltm", "sim", "forget"),
        *("emb", "vec", "lsh", "agents", "type", "place", "of", "gone", "counts", "buf", "erased"),
        *("blocked", "provider"),
    )
    known = {f":{_stem(kind.suffix)}" for kind in SCOPE_KEYS if not kind.suffix.startswith(others)}
    text = "\n".join(script.text for script in all_scripts().values() if script.name.startswith("workspace/"))
    # What excludes changes is a lock.
    built = set(re.findall(r"\bscope \.\. '(:[^']+)'", text)) - {":agent:", ":exec", ":exec:fence"}
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


def test_no_key_is_the_root() -> None:
    """No key has the name of the declared one, so that a server refuses scripts of a moving slot (protocol rule 26)."""
    for script in all_scripts().values():
        bare = r"(?:redis\.call\('[A-Z.]+', (?:'[A-Z]+', )?|_keys?\b[^=\n]* = (?:.*, )?)(?:pool|scope)\b(?! \.\.)"
        assert re.findall(bare, code(script.text)) == [], script.name
    assert all(kind.suffix for kind in (*POOL_KEYS, *SCOPE_KEYS))


def test_no_script_is_sent_after_asking() -> None:
    """It would take the keys that have not moved as missing; the router alone sends ASKING (protocol rule 26)."""
    senders = {
        path.name
        for folder in ("orchestrator", "workers")
        for path in sorted((LUA.parent / folder).rglob("*.py"))
        if re.search(r"""["']ASKING["']""", path.read_text())
    }
    assert senders == {"router.py"}


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
