"""Scripts, their wrappers and the table of keys say the same: what one of them forgets fails here, not on a server."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.agent_state import scripts as state_scripts
from orchestrator.agents import scripts as agent_scripts
from orchestrator.agents.model import AgentSpec, SkillTerms
from orchestrator.boards import scripts as board_scripts
from orchestrator.control import scripts as control_scripts
from orchestrator.core.issued import Issued
from orchestrator.core.rates import Rate
from orchestrator.core.settings import WorkspaceSettings
from orchestrator.limits import scripts as limit_scripts
from orchestrator.locks import scripts as lock_scripts
from orchestrator.locks.model import LockProof
from orchestrator.schedules import scripts as schedule_scripts
from orchestrator.schedules.model import FireOutcome
from orchestrator.store.calls import Call, opaque
from orchestrator.store.keys import POOL_KEYS, SCOPE_KEYS, PoolKeys, ScopeKeys
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
    Verdict,
    VerdictKind,
    WatchStatus,
)
from orchestrator.why import scripts as why_scripts
from orchestrator.workspace import scripts as workspace_scripts
from orchestrator.workspace.limits import pack_limits

KEYS = PoolKeys("a:b:c", "p")
SCOPE = ScopeKeys("a:b:c", "session", "s")
LUA = Path(str(files("lua")))
INCLUDES = sorted((LUA / "includes").glob("*.lua"))
READ_ONLY = {"locks/peek", "tasks/why", "workspace/present", "workspace/tail"}
_SHARED_STATE = {name for name in all_scripts() if name.startswith("workspace/")} - READ_ONLY
_SHARED_STATE |= {"agent_state/change", "boards/add"}
_SHARED_STATE -= {"workspace/clear", "workspace/acknowledge"}  # they make room
FULL_SERVER_REFUSES = {"schedules/put", "tasks/submit", "tasks/emit", "tasks/retry"} | _SHARED_STATE
"""What a full server must refuse: new and requeued tasks, what handlers write. The rest passes, so that it drains."""

_DELIVERY = Delivery("ed", "1-1", "t", "7", 1, 0, b"")
_ROW = task_scripts.UnusualRow("t", opaque(b"\xff"), 1, 2, "q", "s", 3, 4, 5, "k", "d", "p", "1")
_TAKE_BACK: dict[str, Any] = {"agent": "ed", "limit": 1, "max_deaths": {"sum": 3}, "dead_ttl_s": 1}

_CHANGE: dict[str, Any] = {
    "caller": workspace_scripts.CallerRow("o", "exec:t", "1:t:1:0", "ed"),
    "workspace_limits": pack_limits(WorkspaceSettings()),
}
_ISSUED = Issued(1, "c", b"{}", "ann@desk", "why", 1, 2, 0)

SAMPLES: dict[str, Call[Any]] = {
    "schedules/put": schedule_scripts.put(KEYS, name="n", plan=b"{}", digest="d", before="b", next_ms="7", anchor_ms=1),
    "schedules/pause": schedule_scripts.pause(KEYS, name="n"),
    "schedules/resume": schedule_scripts.resume(KEYS, name="n", before="b", next_ms="7"),
    "schedules/delete": schedule_scripts.delete(KEYS, name="n"),
    "schedules/due": schedule_scripts.due(KEYS, excluded=["n"], limit=1),
    "schedules/skip": schedule_scripts.skip(
        KEYS, rows=[schedule_scripts.SkipRow("n", "7", "8", 0, FireOutcome.SKIPPED)]
    ),
    "schedules/repair": schedule_scripts.repair(KEYS, rows=[b"n"], repair=True),
    "control/append": control_scripts.append(
        KEYS,
        issued=_ISSUED,
        packed=b"\xff",
        signature="",
        changes=[control_scripts.ChangeRow("limit:l", "-", 1, 2)],
        job=False,
        per_minute=1,
        token="t",
    ),
    "control/verify": control_scripts.verify(
        KEYS, rows=[control_scripts.VerificationRow("stop:all", b"\xff", control_scripts.Verification.TRUE, 1, 2)]
    ),
    "control/receipt": control_scripts.receipt(KEYS, rows=[control_scripts.ReceiptRow("c", "w", "done", "d")]),
    "control/refuse": control_scripts.refuse(KEYS, rows=[control_scripts.RefusedRow("1-1", b"\xff", b"\xff", "why")]),
    "control/settle": control_scripts.settle(KEYS, id_="c", sender="w", word="done", detail="d"),
    "control/select": control_scripts.select(KEYS, id_="c", at=0, tasks=["t"]),
    "control/release": control_scripts.release(KEYS, scope="skill:s", slot="stop:skill:s", limit=1),
    "tasks/submit": task_scripts.submit(KEYS, rows=[_ROW], max_tasks=1, max_wait_s=1),
    "tasks/promote": task_scripts.promote(KEYS, limit=1),
    "tasks/assign": task_scripts.assign(KEYS, agent="ed", limit=1),
    "tasks/finish": task_scripts.finish(
        KEYS, rows=[(_DELIVERY, Verdict(VerdictKind.SUCCEEDED, b"\xff", reason="r"))], dead_ttl_s=1, max_wait_s=1
    ),
    "tasks/emit": task_scripts.emit(
        KEYS, rows=[task_scripts.EmitRow("t", "7", 1, 1, "output", 1, b"\xff")], max_chunks=1
    ),
    "tasks/watch": task_scripts.watch(KEYS, ids=["t"]),
    "tasks/why": why_scripts.why(KEYS, id_="t"),
    "tasks/cancel": task_scripts.cancel(KEYS, ids=["t"], reason="r"),
    "tasks/delete": task_scripts.delete(KEYS, ids=["t"]),
    "tasks/answer": task_scripts.answer(KEYS, id_="t", number=1, value="1", actor="a", max_wait_s=1),
    "tasks/once": task_scripts.once(KEYS, id_="t", generation="7", name="n", value=b"1"),
    "tasks/retry": task_scripts.retry(KEYS, ids=["t"], token="x", said="s", max_wait_s=1),
    "tasks/begin": task_scripts.begin(KEYS, rows=[("t", "7")]),
    "tasks/renew": task_scripts.renew(KEYS, worker="w", agent="ed", rows=[("1-1", "t", "7")]),
    "tasks/adopt": task_scripts.adopt(KEYS, worker="w", lease_ms=1, held=["1-1"], own=True, **_TAKE_BACK),
    "tasks/recover": task_scripts.recover(KEYS, agent="ed", limit=1, every_ms=1, heartbeat_ms=1, dead_ttl_s=1),
    "tasks/abandon": task_scripts.abandon(KEYS, worker="w", reason="r", **_TAKE_BACK),
    "tasks/repair": task_scripts.repair(KEYS, rows=[(b"t", b"")], repair=True, max_wait_s=1, dead_ttl_s=1),
    "tasks/check_inbox": task_scripts.check_inbox(KEYS, agent="ed", after="0-0", limit=1, repair=True),
    "tasks/check_keys": task_scripts.check_keys(KEYS, rows=[(b"task:t", "hash", 1)], repair=True),
    "agents/repair": agent_scripts.repair(KEYS, rows=[("agent", "ed")], repair=True),
    "agents/register": agent_scripts.register(
        KEYS,
        worker="w",
        spec=AgentSpec("ed", frozenset({"s"}), rate=Rate(1, 2), terms={"s": SkillTerms(3, 2)}),
        slots=1,
        backlog=0,
        about={"pid": 1},
        alive_s=1,
    ),
    "agents/heartbeat": agent_scripts.heartbeat(KEYS, worker="w", backlogs=[("ed", 1)], alive_s=1),
    "agents/deregister": agent_scripts.deregister(KEYS, worker="w"),
    "agents/expire": agent_scripts.expire(KEYS, alive_s=1, limit=1),
    "agents/lead": agent_scripts.lead(KEYS, supervisor="s", lease_ms=1),
    "agents/resign": agent_scripts.resign(KEYS, supervisor="s"),
    "locks/take": lock_scripts.take(SCOPE, lock="lock:n", nonce="0", owner="o", ttl_ms=1),
    "locks/claim": lock_scripts.claim(SCOPE, lock="exec", task="t", generation="1", nonce="0", ttl_ms=1),
    "locks/renew": lock_scripts.renew(SCOPE, rows=[("lock:n", "1:0:o", 1)]),
    "locks/drop": lock_scripts.drop(SCOPE, rows=[("lock:n", "0")]),
    "locks/free": lock_scripts.free(SCOPE, rows=[("exec", "t", "1")]),
    "locks/await_for": lock_scripts.await_for(LockProof(SCOPE, "exec", "1:t:1:0"), tasks=["u"]),
    "locks/peek": lock_scripts.peek(SCOPE),
    "agent_state/change": state_scripts.change(
        SCOPE, op="o", rows=[state_scripts.FieldRow("f", "set", b"\xff")], most=1, lock="exec:t", token="1:t:1:0"
    ),
    "boards/add": board_scripts.add(SCOPE, op="o", member="m", by=1, most=1),
    "limits/check": limit_scripts.check(SCOPE, op="o", most=1, window_us=1, cost=1),
    "workspace/patch": workspace_scripts.patch(
        SCOPE, **_CHANGE, rows=[workspace_scripts.PathRow("p", "set", b"\xff", "is", 1)]
    ),
    "workspace/append": workspace_scripts.append(SCOPE, **_CHANGE, log="l", texts=[b"\xff"], cap=1),
    "workspace/members": workspace_scripts.members(SCOPE, **_CHANGE, name="s", mode="add", changed=["m"]),
    "workspace/transition": workspace_scripts.transition(
        SCOPE, **_CHANGE, id_="t", to="done", text=b"\xff", expect=["open"]
    ),
    "workspace/publish": workspace_scripts.publish(
        SCOPE, **_CHANGE, owner="ed", entry="k", target="path", name="p", cap=1
    ),
    "workspace/join": workspace_scripts.join(SCOPE, **_CHANGE, member="ed", text=b"1", lease_ms=1),
    "workspace/present": workspace_scripts.present(SCOPE),
    "workspace/tail": workspace_scripts.tail(SCOPE, log="l", after=0, limit=1),
    "workspace/direct": workspace_scripts.direct(SCOPE, **_CHANGE, to="ed", word="STOP", text=b"1", most=1),
    "workspace/acknowledge": workspace_scripts.acknowledge(SCOPE, **_CHANGE, to="ed", entries=["1-1"]),
    "workspace/clear": workspace_scripts.clear(SCOPE, **_CHANGE),
}

each_script = pytest.mark.parametrize("script", all_scripts().values(), ids=list(all_scripts()))
each_include = pytest.mark.parametrize("path", INCLUDES, ids=[path.stem for path in INCLUDES])


def header(script: ScriptFile) -> list[str]:
    """The comment that opens a script."""
    lines = (LUA / f"{script.name}.lua").read_text().splitlines()[1:]
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]


def wrappers() -> set[str]:
    """Every public function beside the scripts' wrappers, named as its script should be."""
    modules = (
        ("control", control_scripts),
        ("schedules", schedule_scripts),
        ("agent_state", state_scripts),
        ("boards", board_scripts),
        ("limits", limit_scripts),
        ("locks", lock_scripts),
        ("tasks", task_scripts),
        ("agents", agent_scripts),
        ("workspace", workspace_scripts),
        ("tasks", why_scripts),
    )
    return {
        f"{feature}/{name}"
        for feature, module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def test_one_wrapper_per_script() -> None:
    """Each script has exactly one wrapper of its name in a `scripts` module, and the reverse."""
    assert wrappers() == set(all_scripts()) == set(SAMPLES)
    assert {name: call.script for name, call in SAMPLES.items()} == {name: name for name in SAMPLES}


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
