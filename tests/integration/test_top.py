"""`orc top` on a real pool: its lists, its actions, hostile texts, outages, and what a refresh costs."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Reject, Submission
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.views.control import list_commands
from orchestrator.views.dead_groups import read_dead_groups
from orchestrator.views.health import read_health
from tests.faultkit.servers import RedisServer
from tests.helpers.counted_reads import counted_reads
from tests.helpers.counting import CommandCounter
from tests.helpers.hostile_agents import agent as eve
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.pty_screen import FORGED, HOSTILE
from tests.helpers.terminal import Terminal
from tests.helpers.top_screen import COLUMNS, ROWS, TopScreen, top_screen
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

MARKUP: Final = "[bold red]loud[/bold red] [/] [@click=app.quit]end[/]"
LISTS: Final = ("Overview", "Queues", "Agents", "Workers", "Dead letters", "Commands")
COLOUR: Final = re.compile(r"\x1b\[[\d;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])\b[\d;]*m")


def editor() -> Agent:
    """An agent with a skill that ends well, and one that makes dead letters."""
    agent = Agent("editor", concurrency=2)

    @agent.skill
    async def write() -> str:
        return "written"

    @agent.skill(max_attempts=1)
    async def publish(reason: str) -> None:
        raise Reject(reason)

    return agent


async def make_dead(team: LocalTeam, count: int, reason: str = "the printer is on fire") -> None:
    """Make dead letters."""
    await team.orc.submit_many([Submission("publish", {"reason": reason})] * count)

    async def all_dead() -> bool:
        return (await read_health(team.services)).dead >= count

    await wait_for(all_dead, "the dead letters", TIMEOUT_S * 4)


def check_fits(screen: str) -> None:
    """Check that no line is wider than the terminal, and none is missing."""
    lines = screen.rstrip("\n").split("\n")
    assert len(lines) <= ROWS
    assert all(len(line) <= COLUMNS for line in lines), screen


# ---------------------------------------------------------------------------------------------------------------- lists


async def test_each_list_on_a_small_terminal(team: LocalTeam) -> None:
    """At 80 columns and 24 rows each list shows its part of the pool, live, and the keys move between them."""
    worker = await team.work(editor())
    await make_dead(team, 3)
    await team.orc.submit("translate")
    await team.orc.admin.pause_queue("skill:draw", actor="ada", reason="the model is down")
    async with top_screen(team.settings) as top:
        shown = await top.shows("[1 Overview]", "✕ problem", "◷ oldest", "→ given")
        check_fits(shown)
        assert "agents 1  workers 1" in shown
        assert "supervisor " in shown.split("\n")[0]
        assert re.search(r"↗ rate +succeeded +[▁█]", shown)
        expected = {
            "2": ("skill:translate", "no live agent has", "■ paused by ada: the model is down"),
            "3": ("> editor ", "publish, write"),
            "4": (worker.id, "longest silent"),
            "5": ("> 3 ", "publish", "the printer is on fire", "3 dead letters"),
            "6": ("● active", "pause-queue queue=skill:draw", "ada"),
        }
        for key, texts in expected.items():
            await top.press(key)
            check_fits(await top.shows(f"[{key} {LISTS[int(key) - 1]}]", *texts))
        await top.press("left")
        await top.shows("[5 Dead letters]")
        await make_dead(team, 5)
        await top.shows("8 dead letters")
        await top.press("question_mark")
        check_fits(await top.shows("Each action asks first", "Dead letters: r retry, x delete"))
        await top.press("escape", "2")
        await top.shows("[2 Queues]", without="Each action asks first")


async def test_pages_and_names(team: LocalTeam) -> None:
    """Lists go by pages as high as the terminal; the cursor stays on its row; `/` narrows them by names."""
    await team.orc.submit_many([Submission(f"skill-{number:02}") for number in range(40)])
    async with top_screen(team.settings) as top:
        await top.press("2")
        first = await top.shows("skill:skill-00", "n: next page", "40 names")
        assert first.count("skill:skill-") == ROWS - 7
        await top.press("n")
        await top.shows("page 2", "skill:skill-17", without="skill:skill-16 ")
        await top.press("n")
        await top.shows("page 3", "skill:skill-39", without="n: next page")
        await top.press("n")
        await top.press("b", "b")
        await top.shows("> skill:skill-00", "page 1")
        await top.press("down", "down")
        await top.shows("> skill:skill-02")
        await team.orc.submit("skill-00a")
        await team.orc.admin.pause_queue("skill:skill-01a")  # the feed tells of it
        await top.shows("skill:skill-00a", "> skill:skill-02")
        await top.press("slash", *"skill:skill-3", "enter")
        shown = await top.shows("> skill:skill-30", "names that begin with skill:skill-3")
        assert shown.count("  skill:skill-") + shown.count("> skill:skill-") == 10
        await top.press("slash", *"0", "enter")
        await top.shows("names that begin with skill:skill-30", "> skill:skill-30")


# -------------------------------------------------------------------------------------------------------------- actions


async def test_class_a_needs_one_key(team: LocalTeam) -> None:
    """A pause is given by Enter, with the reason if one is typed; its receipt is shown, and the list tells of it."""
    await team.work(editor())
    async with top_screen(team.settings) as top:
        await top.press("3")
        await top.shows("> editor")
        await top.press("p")
        await top.shows("Give the command pause-agent agent=editor?")
        await top.press("escape")
        await top.shows("no command was given", without="Give the command")
        assert await list_commands(team.services) == []
        await top.press("p", "enter")
        await top.shows("pause-agent agent=editor", "✓ supervisor", "0 missing")
        await top.press("escape")
        await top.shows("■ paused by")
        await top.press("r", "shift+tab", *"mended", "enter")
        await top.shows("resume-agent agent=editor", ": mended", "✓ supervisor")
        await top.press("enter")
        await top.shows("publish, write", without="■ paused")
    given = await list_commands(team.services)
    assert [(one.kind, one.reason) for one in given] == [("resume-agent", "mended"), ("pause-agent", "")]
    assert all("@" in one.actor for one in given)


async def test_class_b_asks(team: LocalTeam) -> None:
    """STOP is given by `y`, never by Enter alone; every process sends a receipt, and each list says it is in force."""
    worker = await team.work(editor())
    async with top_screen(team.settings) as top:
        await top.press("S")
        await top.shows("Give the command stop?")
        await top.press("enter")
        await top.shows("no command was given", without="Give the command")
        assert await list_commands(team.services) == []
        await top.press("S", "y")
        await top.shows(f"✓ {worker.id}", "✓ supervisor", "2 answered, 0 missing")
        await top.press("escape", "4")
        await top.shows("■ STOPPED", "[4 Workers]")
        await top.press("A", "enter")
        await top.shows("start", "2 answered, 0 missing")
        await top.press("escape")
        await top.shows("[4 Workers]", without="■ STOPPED")


async def test_class_c_needs_a_name_and_a_reason(team: LocalTeam) -> None:
    """Dead letters are deleted when their skill and a reason were typed; the end of the job is shown."""
    await team.work(editor())
    await make_dead(team, 3)
    async with top_screen(team.settings) as top:
        await top.press("5")
        await top.shows("> 3 ")
        await top.press("x")
        await top.shows("Type publish to go on:", "3 dead letters of publish", "cannot be undone")
        await top.press(*"publis", "enter", *"old", "enter")
        await top.shows("Type publish first; nothing was changed.")
        await top.press("shift+tab", *"h", "tab", *["backspace"] * 3, "enter")
        await top.shows("This command needs a reason")
        assert (await read_dead_groups(team.services)).total == 3
        assert await list_commands(team.services) == []
        await top.press(*"old", "enter")
        await top.shows("delete-tasks", "job done", "3 deleted")
        await top.press("escape")
        await top.shows("There are no dead letters.")
    assert (await read_dead_groups(team.services)).total == 0


async def test_large_retries_ask_for_the_name(team: LocalTeam) -> None:
    """A retry of 21 tasks asks for the name of their skill, one of fewer does not; a purge always asks."""
    await team.work(editor())
    await make_dead(team, 21)
    async with top_screen(team.settings) as top:
        await top.press("5")
        await top.shows("> 21 ")
        await top.press("r")
        await top.shows("Type publish to go on:", "21 dead letters")
        await top.press(*"publish", "enter", "enter")
        await top.shows("retry-tasks", "job done", "21 ")
        await top.press("escape")
        await team.orc.submit("translate")
        await top.press("2")
        await top.shows("> skill:translate")
        await top.press("x")
        await top.shows("Type skill:translate to go on:", "1 waiting tasks")
        await top.press(*"skill:translate", "enter", *"no one reads it", "enter")
        await top.shows("purge-queue", "job done", "1 cancelled")


@pytest.mark.denied
async def test_a_viewer_gives_nothing(team: LocalTeam) -> None:
    """With the rights of a viewer everything is shown, and a command is refused with the reason."""
    await team.work(editor())
    async with top_screen(team.settings, role="status") as top:
        for number, name in enumerate(LISTS, 1):
            await top.press(str(number))
            await top.shows(f"[{number} {name}]", without="Reading.")
            assert "not current" not in top.text()
        await top.press("S", "y")
        await top.shows("STOP all: Redis refused")


# ---------------------------------------------------------------------------------------------------------------- texts


async def test_hostile_texts(team: LocalTeam) -> None:
    """Nothing that agents and actors wrote commands the terminal, starts a line or is read as markup."""
    await team.work(eve, editor())
    await team.orc.submit("publish", {"reason": MARKUP})
    for how in ("raise", "reject"):
        await team.orc.submit("speak", {"how": how})
    await team.orc.submit("missing", session=HOSTILE)

    async def dead() -> bool:
        return (await read_health(team.services)).dead >= 3

    await wait_for(dead, "the dead letters", TIMEOUT_S * 4)
    await team.orc.admin.pause_agent("eve", actor=f"eve {MARKUP}", reason=HOSTILE)
    await team.orc.admin.stop(session=MARKUP, reason=MARKUP)
    async with top_screen(team.settings, size=(300, 40)) as top:
        for number, name in enumerate(LISTS, 1):
            await top.press(str(number))
            await top.shows(f"[{number} {name}]", without="Reading.")
            check_harmless(top)
        await top.shows("session=" + MARKUP, r"red\x1b[8m")
        await top.press("down", "enter")
        await top.shows("pause-agent agent=eve", r"red\x1b[8m")
        check_harmless(top)
        await top.press("escape", "5")
        await top.shows("> 1 ", MARKUP)
        for _ in range(3):  # the groups, of one task each
            await top.press("x")
            asked = await top.shows("to go on:")
            check_harmless(top)
            if "Type publish" in asked:
                assert "red]loud[/bold" in asked
            await top.press("escape", "down")
            await top.shows("Dead letters", without="to go on:")


def check_harmless(top: TopScreen) -> None:
    """Check that the screen has no character that a terminal obeys, and no line that a text has begun."""
    found = [char for char in top.text() if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    assert set(found) <= {"\n"}, found
    assert not [line for line in top.text().split("\n") if line.startswith(FORGED)]


async def test_without_colours(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `NO_COLOR` no colour is written, and states, cursor and focus are told by words and marks; twin: with it."""
    await team.work(editor())
    await team.orc.submit("translate")
    coloured: dict[bool, bool] = {}
    for wanted in (True, False):
        if not wanted:
            monkeypatch.setenv("NO_COLOR", "1")
        async with top_screen(team.settings) as top:
            await top.shows("✕ problem")
            written = top.written()
            await top.press("S")
            await top.shows("[ Give it ]")
            coloured[wanted] = bool(COLOUR.search(written + top.written()))
            await top.press("escape", "3")
            await top.shows("> editor")
    assert coloured == {True: True, False: False}


# -------------------------------------------------------------------------------------------------------------- outages


async def test_redis_away(prefix: str) -> None:
    """While Redis is away the screen says so and keeps what it had; it goes on when Redis is back."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = local_settings(server.url, prefix, redis__command_timeout_s=0.5)
        async with run_local_team(settings, supervised=False) as team:
            await team.orc.submit("translate")
            async with top_screen(settings) as top:
                await top.press("2")
                await top.shows("> skill:translate")
                await anyio.to_thread.run_sync(server.kill)
                await top.press("space")
                await top.shows("✕ not current: ", "> skill:translate")
                await top.press("S")
                await top.shows("STOP all: ")
                await anyio.to_thread.run_sync(server.start)
                await top.shows("> skill:translate", without="not current")
                await team.orc.submit("draw")
                await top.press("space")
                await top.shows("skill:draw")


# ----------------------------------------------------------------------------------------------------------------- cost

AGENTS: Final = 1000
SKILLS: Final = 200
MOST_COMMANDS: Final = 300
NEVER: Final = {"scan", "keys", "sscan", "hscan", "zscan", "smembers"}


async def fill(team: LocalTeam, *, agents: int, tasks: int) -> None:
    """Register agents with a worker each, and store tasks for them."""
    keys, spec = team.services.keys, frozenset(f"skill-{number}" for number in range(5))
    calls = [
        registry.register(
            keys, worker=f"w{number}", spec=AgentSpec(f"agent-{number:04}", spec), slots=4, backlog=0, about={},
            alive_s=600,
        )
        for number in range(agents)
    ]  # fmt: skip
    for first in range(0, agents, 100):
        await team.services.store.call_all(calls[first : first + 100])
    await team.orc.submit_many([Submission(f"skill-{number % SKILLS}") for number in range(tasks)])


@dataclass(frozen=True)
class Cost:
    """What one refresh of a list took: commands that were sent, a script being one, and all that the server ran."""

    sent: int
    ran: dict[str, int]


async def costs(top: TopScreen, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> dict[str, Cost]:
    """Measure one whole refresh of each list, the state of the pool included."""
    found = {}
    for number, name in enumerate(LISTS, 1):
        await top.press(str(number))
        await top.shows(f"[{number} {name}]", without="Reading.")
        while name not in found:
            await top.rest()
            before, counter = top.reads, CommandCounter(client)
            with counted_reads(top.store, monkeypatch) as counted:
                await top.read_again()
            if top.reads == before + 1:  # else the feed told of a change meanwhile
                found[name] = Cost(len(counted.commands) + counter.scripts(), counter.calls())
    return found


@pytest.mark.parametrize("tasks", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_a_refresh_costs_the_same_in_a_large_pool(
    settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """With 1,000 agents and many tasks a refresh takes as many commands as with a tenth of the agents, and no scan.

    What scripts run inside the server is bounded too: `why` looks at so many agents for the first task of a queue.
    """
    async with run_local_team(settings, supervised=False) as team, top_screen(settings) as top:
        await fill(team, agents=AGENTS // 10, tasks=400)
        small = await costs(top, redis_client, monkeypatch)
        await fill(team, agents=AGENTS, tasks=tasks)
        large = await costs(top, redis_client, monkeypatch)
        assert f"agents {AGENTS:,}  workers {AGENTS:,}" in top.text()
    for name, cost in large.items():
        assert not NEVER & set(cost.ran), (name, cost)
        assert cost.sent <= MOST_COMMANDS, (name, cost)
        assert cost.sent <= small[name].sent + 5, (name, cost, small[name])
        assert sum(cost.ran.values()) <= sum(small[name].ran.values()) * 1.1, (name, cost, small[name])


async def test_reads_follow_changes(settings: Settings, redis_client: redis.Redis) -> None:
    """At rest nothing is sent; however often the pool changes, a list is read once a second."""
    async with run_local_team(settings, supervised=False) as team, top_screen(settings) as top:
        await top.shows("[1 Overview]", "no worker runs")
        await anyio.sleep(1.5)
        before, counter = top.reads, CommandCounter(redis_client)
        await anyio.sleep(3)
        assert top.reads == before
        assert sum(counter.calls().values()) == 0, counter.calls()
        began_s = time.monotonic()
        while time.monotonic() - began_s < 3:
            await team.orc.submit("skill")
            await team.orc.admin.stop(session="a")
            await anyio.sleep(0.05)
        assert 1 <= top.reads - before <= (time.monotonic() - began_s) + 1


# ---------------------------------------------------------------------------------------------------------------- start


def test_the_extra_and_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, or without a terminal, the command says what to do."""
    terminal = Terminal(tmp_path)
    done = terminal.orc("top")
    assert done.code == 2
    assert "`orc status` prints the state once" in done.err
    monkeypatch.setitem(sys.modules, "textual", None)
    done = terminal.orc("top")
    assert done.code != 0
    assert "pip install 'redis-orchestrator[top]'" in done.err


# ------------------------------------------------------------------------------------------------------------- the page

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "top.md"


def blocks() -> list[str]:
    """The texts in frames on the page of the guide."""
    return re.findall(r"^```text\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def lasting(screen: str) -> list[str]:
    """Return the lines of a screen without what differs between two runs: ages, ids, sizes, words that are cut."""
    text = re.sub(r"\d+ (?:s|min) ago", "N ago", screen)
    text = re.sub(r"supervisor \S+", "supervisor ID", text)
    text = re.sub(r"\d+ MB", "N MB", text)
    text = re.sub(r"\S*…", "…", text)
    return [" ".join(line.split()) for line in text.split("\n") if line]


async def test_the_screen_on_the_page(team: LocalTeam) -> None:
    """The guide shows a screen that the program draws, and its list of keys."""
    await team.work(editor())
    await team.orc.admin.pause_queue("skill:draw", actor="ada@desk", reason="the model is down")
    await team.orc.submit_many([Submission("draw")] * 12 + [Submission("translate")] * 3)
    async with top_screen(team.settings) as top:
        await top.press("2")
        shown = await top.shows("■ paused", "no live agent", "2 names")
        screen, keys = blocks()
        assert lasting(shown) == lasting(screen), shown
        await top.press("question_mark")
        await top.shows(*keys.split("\n"))
