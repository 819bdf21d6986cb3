"""The page of a task: hostile texts, families, retried tasks, and its output live."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import pytest

from orchestrator import Agent, EffectDone, TaskContext, TaskFailed
from orchestrator.dashboard import task_output
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b]0;x\x07\x00"
PAGE_BYTES = 200_000


def _agent(gate: anyio.Event | None = None) -> Agent:
    agent = Agent("worker")

    @agent.skill
    async def fail(ctx: TaskContext, text: str) -> None:
        await ctx.emit(text)
        await ctx.progress(1, 2, text)
        raise ValueError(text)

    @agent.skill
    async def ask(ctx: TaskContext, text: str) -> None:
        await ctx.ask(text, options=[text, {"deep": [text]}])

    @agent.skill
    async def spread(ctx: TaskContext, width: int) -> None:
        for _ in range(width):
            await ctx.submit("leaf")

    @agent.skill
    async def talk(ctx: TaskContext, lines: int) -> None:
        for n in range(lines):
            await ctx.emit({"line": n, "token": "hunter2"})
            if gate is not None and n == lines // 2:
                await gate.wait()

    return agent


def _safe(text: str) -> None:
    assert "<script>alert" not in text
    assert not {"\u202e", "\x1b", "\x07", "\x00"} & set(text)
    assert len(text.encode()) < PAGE_BYTES


async def test_hostile(team: LocalTeam) -> None:
    """Markup, bidi marks, NUL, long names and deep JSON are text, everywhere on the pages of a task."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    texts = (HOSTILE, HOSTILE * 400)
    for text in texts:
        failed = await team.orc.submit("fail", {"text": text}, session=HOSTILE[:60], tags=[HOSTILE[:60]],
                                       lane=HOSTILE[:60], key=text[-100:] + str(len(text)), max_attempts=1)  # fmt: skip
        with pytest.raises(TaskFailed):
            await failed.result(timeout=TIMEOUT_S)
        for path in ("", "/args", "/tree"):
            answer = await web.get(f"/tasks/{failed.id}{path}")
            assert answer.status_code == 200, answer.text
            _safe(answer.text)
        _safe((await web.get(f"/submit?from={failed.id}")).text)
    deep = await team.orc.submit("later", {"a": _nested(60)})
    for path in (f"/tasks/{deep.id}", f"/submit?from={deep.id}"):
        assert (await web.get(path)).status_code == 200
    _safe((await web.get(f"/submit?skill={quote(HOSTILE)}&args={quote(HOSTILE)}")).text)
    web.dashboard.forget_reads()
    asked = await team.orc.submit("ask", {"text": HOSTILE})
    while "It asks" not in (page := (await web.get(f"/tasks/{asked.id}")).text):
        web.dashboard.forget_reads()
        await anyio.sleep(0.02)
    _safe(page)
    _safe((await web.get("/questions")).text)
    form = await web.form(f"/tasks/{asked.id}", f"/tasks/{asked.id}/answer")
    assert (await web.post(f"/tasks/{asked.id}/answer", form)).status_code == 303


def _nested(levels: int) -> object:
    value: object = "end"
    for _ in range(levels):
        value = [value]
    return value


async def test_commands(team: LocalTeam) -> None:
    """Each page says which command shows the same."""
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("later", session="a b")
    page = (await web.get(f"/tasks/{handle.id}")).text
    for command in (f"show {handle.id}", f"why {handle.id}", f"cancel {handle.id}", "list --session &#39;a b&#39;"):
        assert f"orc tasks {command}" in page
    assert "<svg" in page
    assert "style=" not in page
    assert f"orc tasks show {handle.id} --tree" in (await web.get(f"/tasks/{handle.id}/tree")).text


async def test_pages_stay_current(team: LocalTeam) -> None:
    """The streams of the pages render each part as the pages do, of waiting and of ended tasks."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    waiting = await team.orc.submit("later", {"a": 1})
    ended = await team.orc.submit("spread", {"width": 2})
    await ended.result(timeout=TIMEOUT_S)
    for task in (waiting.id, ended.id):
        seen: list[str] = []
        await _follow(web, f"/live/tasks/{task}", seen, until="#attempts")
        for region in ("state", "question", "buttons", "timeline", "values", "attempts"):
            assert f'hx-target="#{region}"' in "".join(seen), region
        assert "Arguments" in "".join(seen)
    for path, region in ((f"/tasks/{ended.id}/tree", "tree"), ("/questions", "questions")):
        await _follow(web, f"/live{path}", [], until=f'hx-target="#{region}"')


async def test_tree(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree shows so many tasks, and of the others the number."""
    monkeypatch.setattr("orchestrator.dashboard.pages.task_tree.SHOWN", 5)
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("spread", {"width": 12})
    await handle.result(timeout=TIMEOUT_S)
    tree = (await web.get(f"/tasks/{handle.id}/tree")).text
    assert tree.count('<th scope="row">') == 5
    assert "8 more children" in tree
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert "12 children" in page


# -------------------------------------------------------------------------------------------------------- live output


async def _follow(web: WebClient, path: str, seen: list[str], *, until: str, **headers: str) -> str:
    """Read the stream of a task until a text; return the last id."""
    buffer = ""

    async def write(text: str) -> None:
        nonlocal buffer
        buffer += text
        seen.append(text)
        if until in buffer:
            done.set()

    done = anyio.Event()
    await web.stream(path, write, done, **headers)
    ids: list[str] = re.findall(r"^id: (\S+)$", buffer, re.MULTILINE)
    return ids[-1] if ids else ""


def _lines(seen: list[str]) -> list[int]:
    return [int(n) for n in re.findall(r"&#34;line&#34;: (\d+)", "".join(seen))]


async def test_output_goes_on(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output comes live; after a cut another server goes on behind the last id, and no line is lost or repeated."""
    monkeypatch.setattr(task_output, "LEAST_GAP_S", 0.01)
    gate = anyio.Event()
    await team.work(_agent(gate))
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("talk", {"lines": 60})
    seen: list[str] = []
    last = await _follow(web, f"/tasks/{handle.id}/output?after=0-0", seen, until="&#34;line&#34;: 20")
    assert "hunter2" not in "".join(seen)
    gate.set()
    other = WebClient(team.orc)  # the first server was killed
    await other.log_in()
    await _follow(other, f"/tasks/{handle.id}/output?after=0-0", seen, until="event: ended", last_event_id=last)
    assert _lines(seen) == list(range(60))
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert _lines([page])[-1] == 59
    assert "/output?after=" not in page


async def test_output_says_bye(team: LocalTeam) -> None:
    """A server that stops ends its streams, so that browsers connect again."""
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("later")
    seen: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_stop_soon, web)
        await _follow(web, f"/tasks/{handle.id}/output", seen, until="\0")
    assert "event: bye" in "".join(seen)
    for path, status in (("?after=x", 400), ("?after=0-0", 200)):
        answer = await web.get(f"/tasks/{handle.id}/output{path}")
        assert answer.status_code == status
    unknown = await web.get("/tasks/01a20b3c-8edb-710f-8780-7ca34f674ff4/output")
    assert unknown.status_code == 404


async def _stop_soon(web: WebClient) -> None:
    await anyio.sleep(0.1)
    web.dashboard.stopping.set()


async def test_output_of_many_lines(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open page begins anew after so many lines, so that it does not grow without end."""
    monkeypatch.setattr(task_output, "MOST_LINES", 30)
    monkeypatch.setattr(task_output, "AT_ONCE", 8)
    monkeypatch.setattr(task_output, "LEAST_GAP_S", 0.0)
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("talk", {"lines": 100})
    await handle.result(timeout=20.0)
    seen: list[str] = []
    await _follow(web, f"/tasks/{handle.id}/output", seen, until="event: ended")
    assert _lines(seen) == list(range(100))
    assert "".join(seen).count('hx-swap="innerHTML"') >= 2


async def test_effects(team: LocalTeam) -> None:
    """The page lists the effects of a task with their states and decisions, and names the command that does."""
    agent = Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> str:
        async def charge() -> None:
            raise TimeoutError

        return str(await ctx.effect("<b>charge", charge, check=lambda: EffectDone(ctx.attempt)))

    await team.work(agent)
    handle = await team.orc.submit("buy", max_attempts=5)
    await handle.result(timeout=TIMEOUT_S)
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert re.search(r'<th scope="row" class="text">&lt;b&gt;charge</th><td>done</td>', page)
    assert "done by check" in page
    assert f"orc tasks effects {handle.id}" in page
