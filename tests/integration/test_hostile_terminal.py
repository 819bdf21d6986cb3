"""Every command, on a terminal, over a pool whose texts are hostile: no byte of them commands the terminal.

The commands are those that the program declares. One that the table here does not name fails the test.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import pytest
import structlog

from orchestrator import Agent, LockLost, Record
from orchestrator.cli.app import program
from orchestrator.cli.terminal import output
from orchestrator.core.log import configure_logging
from tests.helpers.hostile_agents import agent as eve
from tests.helpers.local_team import run_local_team
from tests.helpers.pty_screen import FORGED, HOSTILE, Screen, type_on_terminal, unsafe_in
from tests.helpers.rewritten_keys import replace_in_keys
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import redis

    from orchestrator.cli.terminal.parsing import Commands
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.log import Format
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

SESSION: Final = f"s {HOSTILE}"
HOWS: Final = ("return", "raise", "reject", "retry", "snooze", "ask", "log")
ENDED: Final = ("return", "raise", "reject", "retry", "log")
FORMS: Final = ((), ("-o", "json"), ("-o", "jsonl"), ("-o", "id"))
NOT_TYPED: Final = {
    "demo": "has a pool of its own", "bench": "has a pool of its own", "redis run": "runs until a signal",
    "up": "runs until a signal; its programs' log is tested apart", "worker run": "as up", "supervisor run": "as up",
    "top": "a screen; tests/integration/test_top.py walks through it",
    "web user add": "asks for a password without echo",
    "agents top": "the board of a day has numbers only",
}  # fmt: skip
"""Commands that the walk leaves out, with the reason."""


def _declared(commands: Commands, before: str = "") -> Iterator[str]:
    """The commands that run something, from the program's own declaration."""
    for name in commands.lazies:
        yield from _declared(commands.load(name), f"{before} {name}".strip())
    yield from (f"{before} {name}".strip() for name in commands.leaves)
    if commands.own is not None:
        yield before


def _shown(tasks: dict[str, str], command: str, folder: Path) -> list[tuple[str, ...]]:
    """Commands that change nothing."""
    of_tasks = [
        ("tasks", name, task, *more)
        for task in tasks.values()
        for name, *more in (("show", "--tree"), ("show",), ("why",), ("result",))
    ]
    watched = [
        ("tasks", name, tasks[how], *more) for how in ENDED for name in ("watch", "wait") for more in ((), ("--debug",))
    ]
    return [
        *of_tasks, *watched, ("status",), ("doctor", "--all"), ("control", "list"), ("control", "show", command),
        ("tasks", "effects", tasks["raise"]),
        ("control", "list", "--actor", HOSTILE), ("tasks", "list"), ("tasks", "list", "--session", SESSION),
        ("tasks", "list", "--reason-contains", HOSTILE), ("tasks", "list", "--skill", HOSTILE), ("events",),
        ("events", "--session", SESSION), ("sessions", "list"), ("sessions", "show", SESSION),
        ("sessions", "events", SESSION), ("dead", "list"),
        ("dead", "list", "--group", "error"), ("dead", "list", "--group", "reason"), ("dead", "show", tasks["raise"]),
        ("dead", "export", "--all"), ("dead", "export", tasks["reject"]), ("agents", "list"), ("agents", "show", "eve"),
        ("agents", "show", HOSTILE), ("skills", "list"), ("skills", "show", "speak"), ("skills", "show", HOSTILE),
        ("stats",), ("limits", "list"), ("workers", "list"), ("workers", "show", HOSTILE), ("queues", "list"),
        ("schedules", "list"), ("schedules", "show", "nightly"), ("schedules", "next", "nightly"),
        ("schedules", "next"), ("locks", "list", f"session:{SESSION}"), ("locks", "list", HOSTILE),
        ("chat", "show", SESSION, "--source", HOSTILE), ("chat", "show", SESSION, "--source", HOSTILE, "--full"),
        ("chat", "export", SESSION, "--source", HOSTILE), ("chat", "show", HOSTILE), ("memory", "list", "ada"),
        ("memory", "show", "ada", "r1"), ("memory", "show", "ada", HOSTILE), ("memory", "export", "ada"),
        ("memory", "list", "ada", "--kind", HOSTILE), ("workspace", "get", SESSION),
        ("workspace", "get", SESSION, "a.b"),
        ("workspace", "get", SESSION, HOSTILE), ("workspace", "log", SESSION, "findings"),
        ("workspace", "log", SESSION, HOSTILE), ("workspace", "events", SESSION), ("workspace", "export", SESSION),
        ("keys", "check"), ("keys", "report"), ("keys", "report", "--by", "session"), ("upgrade", "status"),
        ("upgrade", "load"),
        ("web", "user", "list"), ("web", "token", "list"), ("web", "login"),
        ("auth", "acl"), ("auth", "acl", HOSTILE), ("auth", "acl", f"worker={HOSTILE}"),
        ("redis", "info"), ("redis", "info", "--data-dir", str(folder / HOSTILE.replace("\0", ""))),
        ("service", "print", "orchestrator-worker"), ("service", "print", HOSTILE), ("service", "status"),
        ("service", "install", "--dry-run", "--root", str(folder)), ("config", "show", "--sources"), ("config", "diff"),
        ("config", "validate"), ("config", "validate", str(folder / "hostile.toml")), ("config", "schema"),
        ("config", "published"), ("completion", "bash"), ("version",), ("tasks", "show", "--debug", HOSTILE),
        ("status", "--prefix", HOSTILE), ("status", "--pool", HOSTILE), (HOSTILE,), ("tasks", HOSTILE),
        ("tasks", "list", f"--{HOSTILE}"), ("status", "-o", HOSTILE), ("status", "--config", f"/{HOSTILE}"[:60]),
    ]  # fmt: skip


def _in_forms(commands: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Each for people and as JSON, and the first of each kind in all forms."""
    seen: set[tuple[str, ...]] = set()
    for words in commands:
        yield from ((*words, *form) for form in (FORMS[:2] if words[:2] in seen else FORMS))
        seen.add(words[:2])


def _changing(tasks: dict[str, str], folder: Path) -> list[tuple[str, ...]]:
    """Commands that change something, in an order in which each finds something."""
    why, pool = ("--reason", HOSTILE), str(folder / "pool.orc")
    steered = [
        ("stop", "--skill", "other"), ("stop", "--session", SESSION), ("start", "--skill", "other"),
        ("start", "--session", SESSION), ("start", "--agent", "nobody"), ("control", "log-level", "warning"),
        ("control", "log-level", "--reset"), ("agents", "pause", "eve"), ("agents", "hold", "eve", "1m"),
        ("shares", "set", "acme", "--weight", "3"), ("shares", "set", HOSTILE, "--weight", "3"), ("shares", "list"),
        ("shares", "delete", "acme"), ("shares", "delete", HOSTILE),
        ("budgets", "set", "run-7", "--usd", "2"), ("budgets", "set", HOSTILE, "--usd", "2"), ("budgets", "list"),
        ("budgets", "show", "run-7"), ("budgets", "show", HOSTILE), ("budgets", "delete", "run-7"),
        ("agents", "resume", "eve"), ("agents", "limit", "eve", "9/s"), ("limits", "set", "model", "9/s"),
        ("limits", "hold", "model", "1m"), ("limits", "reset", "model"),
        ("limits", "clear", "model"), ("queues", "pause", "agent:eve"),
        ("queues", "drain", "agent:eve"), ("queues", "resume", "agent:eve"), ("workers", "drain", "nobody"),
        ("workers", "resume", "nobody"), ("workers", "stop", "nobody"),
        ("config", "publish", "key", json.dumps(HOSTILE)),
        ("control", "renew", "--yes"),
    ]  # fmt: skip
    return [
        *((*words, *why, "--timeout", "1s") for words in steered), ("config", "published"),
        ("config", "withdraw", "key", *why, "--timeout", "1s"),
        ("tasks", "submit", "speak", "-a", f"how={HOSTILE}", "--session", SESSION, "--tag", HOSTILE),
        ("tasks", "submit", HOSTILE), ("tasks", "submit", "missing", "-a", f"x={HOSTILE}"),
        ("tasks", "submit", "speak", HOSTILE),
        ("tasks", "submit", "speak", "-a", "how=raise", "--wait", "--timeout", "5s"),
        ("tasks", "submit", "speak", "-a", "how=return", "--wait", "--timeout", "5s"),
        ("tasks", "submit", "speak", f"@/{HOSTILE}"[:40]),
        ("tasks", "answer", tasks["ask"], HOSTILE), ("tasks", "answer", tasks["ask"], json.dumps(HOSTILE)),
        ("tasks", "retry", tasks["raise"], *why, "--timeout", "1s"),
        ("tasks", "retry", "--reason-contains", HOSTILE, "--dry-run"),
        ("tasks", "cancel", tasks["snooze"], *why, "--timeout", "5s"), ("tasks", "cancel", HOSTILE),
        ("tasks", "cancel", "--session", SESSION), ("dead", "retry", tasks["reject"], *why),
        ("dead", "delete", "--session", SESSION, "--dry-run"), ("dead", "delete", "--session", SESSION, *why),
        ("tasks", "delete", "--session", SESSION, "--state", "succeeded", *why),
        ("tasks", "delete", tasks["return"], "--yes", *why), ("queues", "purge", "skill:other", "--yes", *why),
        ("schedules", "add", "other", "speak", json.dumps({"how": HOSTILE}), "--every", "1h", *why),
        ("schedules", "add", "other", HOSTILE, "--every", "1h"), ("schedules", "pause", "nightly", *why),
        ("schedules", "resume", "nightly", *why), ("schedules", "trigger", "nightly", *why),
        ("schedules", "delete", "nightly", "--yes", *why), ("schedules", "delete", HOSTILE, "--yes"),
        ("locks", "release", f"session:{SESSION}", HOSTILE, *why),
        ("locks", "release", f"session:{SESSION}", "name", "--yes"),
        ("chat", "append", SESSION, HOSTILE, "--source", HOSTILE, "--role", HOSTILE, "--turn", HOSTILE),
        ("chat", "extract", SESSION, "--agent", "eve", "--source", HOSTILE),
        ("chat", "clear", SESSION, "--source", HOSTILE, *why),
        ("chat", "clear", SESSION, "--source", HOSTILE, "--yes", *why),
        ("memory", "forget", "ada", "--all", "--dry-run"), ("memory", "forget", "ada", "--id", HOSTILE),
        ("memory", "forget", "ada", "--all", "--yes"), ("erase", HOSTILE, "--asked-by", HOSTILE),
        ("erase", HOSTILE, "--asked-by", HOSTILE, "--yes", *why),
        ("web", "user", "remove", HOSTILE, "--yes"), ("web", "token", "make", "ci"), ("web", "token", "make", HOSTILE),
        ("web", "token", "revoke", "ci"), ("web", "token", "revoke", HOSTILE),
        ("workspace", "set", SESSION, "c", json.dumps(HOSTILE)),
        ("workspace", "set", SESSION, HOSTILE, "1"), ("workspace", "set", SESSION, "a", "--delete"),
        ("backup", pool), ("backup", str(folder / HOSTILE[:60])), ("restore", pool, "--into", f"{HOSTILE}"[:50]),
        ("restore", pool, "--into", "x:y:z", "--dry-run"), ("keys", "rebuild", "--yes"),
        ("keys", "check", "--repair", "--yes"),
        ("sessions", "delete", SESSION, "--dry-run"), ("sessions", "delete", SESSION, *why),
        ("sessions", "delete", SESSION, "--yes", "--cancel", *why), ("upgrade", "finish", "--yes", *why),
    ]  # fmt: skip


async def _fill(team: LocalTeam) -> tuple[dict[str, str], str]:
    """Put hostile texts everywhere where a program may; return the tasks and a command."""
    tasks = {
        how: (
            await team.orc.submit("speak", {"how": how, "value": {HOSTILE: [HOSTILE]}}, session=SESSION, tags=[HOSTILE])
        ).id
        for how in HOWS
    }
    async with team.orc.workspace(SESSION).edit(agent="ada") as ws:
        await ws.set("a", {"b": HOSTILE, HOSTILE: [HOSTILE]})
        await ws.append("findings", HOSTILE, {HOSTILE: HOSTILE})
        await ws.direct("bob", "STOP", HOSTILE)
    chat = team.orc.chat(SESSION, HOSTILE)
    await chat.append(
        [{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": [{"type": "text", "text": HOSTILE}]}]
    )
    await chat.set_summary(HOSTILE, upto=1, version=1)
    await chat.set_meta({"topic": HOSTILE})
    memory = team.orc.memory("ada")
    await memory.store(
        Record(
            id="r1",
            step=1,
            kind="plan",
            content={HOSTILE: HOSTILE},
            importance=0.5,
            meta={"m": HOSTILE},
            subject=HOSTILE,
        )
    )
    await team.orc.admin.schedules.add(
        "nightly", "speak", {"how": HOSTILE}, cron="0 3 * * *", reason=HOSTILE, actor=HOSTILE
    )
    sent = await team.orc.admin.pause_agent("ada", reason=HOSTILE, actor=HOSTILE)
    await team.orc.admin.publish_config("text", {HOSTILE: HOSTILE}, reason=HOSTILE, actor=HOSTILE)
    states = {how: "awaiting_input" if how == "ask" else None for how in HOWS}

    async def settled() -> bool:
        infos = {how: await team.orc.task(task).info() for how, task in tasks.items()}
        return all(
            info.state in {"succeeded", "dead"}
            or info.state == states[how]
            or (how == "snooze" and info.state == "scheduled")
            for how, info in infos.items()
        )

    await wait_for(settled, "the tasks to end, ask or wait", 15)
    return tasks, sent.id


async def test_every_command(team: LocalTeam, tmp_path: Path) -> None:
    """No output has a character that a terminal obeys or hides, and no text starts a line, in any form of output."""
    await team.work(eve)
    tasks, command = await _fill(team)
    (tmp_path / "hostile.toml").write_text("pool = " + json.dumps(HOSTILE))
    url = team.settings.redis.url
    assert url is not None
    environ = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix).environ
    typed: set[str] = set()
    leaks: list[str] = []
    known = set(_declared(program()))
    printed = 0
    async with AsyncExitStack() as held:
        held.enter_context(suppress(LockLost))  # the walk releases one
        for name in ("name", HOSTILE):
            await held.enter_async_context(team.orc.locks(f"session:{SESSION}", owner=HOSTILE).hold(name, ttl=600))
        for words in [*_in_forms(_shown(tasks, command, tmp_path)), *_changing(tasks, tmp_path)]:
            code, screen = await anyio.to_thread.run_sync(partial(type_on_terminal, environ, tmp_path, *words))
            typed |= {path for path in known if [*words[: path.count(" ") + 1]] == path.split()}
            printed += FORGED.encode() in screen
            leaks += [f"{words!a}: {leak}" for leak in unsafe_in(screen)]
            assert b"this is a bug" not in screen, (words, code, screen)
    assert leaks == [], "\n".join(leaks[:50])
    assert known - typed == set(NOT_TYPED)
    assert printed > 100


async def test_the_walk_finds_what_is_not_escaped(
    team: LocalTeam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: without the escapes, each way to the terminal has what the walk looks for."""
    await team.work(eve)
    task = await team.orc.submit("speak", {"how": "raise"})
    await wait_for(lambda: _is_dead(task), "the dead letter")
    url = team.settings.redis.url
    assert url is not None
    environ = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix).environ
    monkeypatch.setattr(output, "escape", lambda text, _=None: text)
    monkeypatch.setattr(output, "escape_json", lambda text: text)
    found = {}
    for words in (("tasks", "show", task.id), ("tasks", "watch", task.id), ("skills", "list"), ("workers", "list")):
        _, screen = await anyio.to_thread.run_sync(partial(type_on_terminal, environ, tmp_path, *words))
        found[words] = bool(unsafe_in(screen))
    assert list(found.values()) == [True, True, True, False]
    for char in "\x00\x07\r\x1b\x7f\x9b\u2028\u202e\u200b\ufeff\U000e0041":
        assert unsafe_in(f"a{char}b\r\n".encode()), ascii(char)
    assert unsafe_in(b"\x1b[8mhidden")
    assert unsafe_in(f"ok\r\n{FORGED}".encode())
    assert unsafe_in(f"\x1b[32mok\x1b[0m\r\n  {FORGED}: 日本 é\r\n".encode()) == []


async def _is_dead(task: TaskHandle[Any]) -> bool:
    return (await task.info()).state == "dead"


MARK: Final = "hostilemark1"
"""A name that programs accept, as long as `RAW`, so that lengths and JSON texts around it stay right."""
RAW: Final = "\x9b8m\u202e\u200b\x9d"


async def test_hostile_names(settings: Settings, redis_client: redis.Redis, tmp_path: Path) -> None:
    """Names that no program accepts, written into Redis by hand, reach no terminal either."""
    agent = Agent(MARK, limits=[MARK])

    @agent.skill(name=MARK)
    async def speak(how: str) -> str:
        if how == "raise":
            raise ValueError(MARK)
        return MARK

    limited = settings.model_copy(update={"limits": {MARK: "1000/s"}})
    async with run_local_team(limited) as team:
        await team.work(agent)
        tasks = [await team.orc.submit(MARK, {"how": how}, session=MARK, tags=[MARK]) for how in ("return", "raise")]
        tasks.append(await team.orc.submit(MARK, {"how": "later"}, session=MARK, agent=MARK, delay=3600))
        await wait_for(lambda: _has_ended(tasks[0]), "the result")
        await wait_for(lambda: _has_ended(tasks[1]), "the dead letter", 20)
        await team.orc.chat(MARK, MARK).append([{"role": MARK, "content": MARK}])
        await team.orc.memory(MARK).store(Record(id=MARK, step=1, kind=MARK, content=MARK, importance=0.5))
        async with team.orc.workspace(MARK).edit(agent=MARK) as ws:
            await ws.set(MARK, {MARK: MARK})
            await ws.append(MARK, MARK)
        await team.orc.admin.schedules.add(MARK, MARK, {"how": "return"}, cron="0 3 * * *", session=MARK)
        await team.orc.admin.pause_agent(MARK, reason=MARK)
        sent = await team.orc.admin.stop(skill=MARK, reason=MARK)
        await team.orc.admin.publish_config(MARK, MARK)
    assert replace_in_keys(redis_client, settings.prefix, MARK.encode(), RAW.encode()) > 20
    url = settings.redis.url
    assert url is not None
    environ = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=settings.prefix).environ
    of_tasks = [("tasks", name, task.id) for task in tasks for name in ("show", "why", "result")]
    commands = [
        *of_tasks, ("tasks", "watch", tasks[0].id), ("dead", "show", tasks[1].id), ("status",), ("doctor", "--all"),
        ("control", "list"), ("control", "show", sent.id), ("tasks", "list"), ("events",), ("sessions", "list"),
        ("sessions", "show", RAW), ("dead", "list"), ("dead", "list", "--group", "skill"), ("agents", "list"),
        ("agents", "show", RAW), ("skills", "list"), ("skills", "show", RAW), ("stats",), ("limits", "list"),
        ("workers", "list"), ("queues", "list"), ("schedules", "list"), ("schedules", "next"), ("chat", "show", RAW),
        ("chat", "show", RAW, "--source", RAW), ("memory", "list"), ("memory", "list", RAW), ("workspace", "get", RAW),
        ("workspace", "log", RAW, RAW), ("workspace", "events", RAW), ("keys", "check"), ("keys", "report"),
        ("keys", "report", "--by", "session"), ("config", "published"), ("upgrade", "status"),
    ]  # fmt: skip
    leaks, shown = [], 0
    for words in commands:
        for form in FORMS[:2]:
            _, screen = await anyio.to_thread.run_sync(partial(type_on_terminal, environ, tmp_path, *words, *form))
            leaks += [f"{words!a}: {leak}" for leak in unsafe_in(screen)]
            shown += rb"\u202e" in screen
    assert leaks == [], "\n".join(leaks[:50])
    assert shown > 10


async def _has_ended(task: TaskHandle[Any]) -> bool:
    return (await task.info()).state in {"dead", "succeeded"}


@pytest.mark.parametrize("format_", ["console", "json"])
async def test_the_log_of_a_worker(team: LocalTeam, format_: Format) -> None:
    """Errors, reasons and log lines of handlers reach the terminal as text."""
    screen = Screen()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with os.fdopen(os.dup(screen.terminal), "w", encoding="utf-8") as stream:
        configure_logging("debug", format_, stream)
        try:
            await team.work(eve)
            tasks = [await team.orc.submit("speak", {"how": how}) for how in ENDED]
            for task in tasks:
                await wait_for(partial(_has_ended, task), "the end", 15)
            await wait_for(lambda: screen.text.count(b"task_failed") >= 3, "the lines")
        finally:
            for added in [handler for handler in root.handlers if handler not in handlers]:
                added.close()
            root.handlers[:] = handlers
            root.setLevel(level)
            structlog.reset_defaults()
    screen.close()
    assert unsafe_in(screen.text) == []
    assert screen.text.count(FORGED.encode()) > 10
