"""A session of the OpenAI Agents SDK: the cases of the SDK's own sessions, and its runner with a scripted model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from agents import Agent as SdkAgent
from agents import RunConfig, Runner, function_tool
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from orchestrator import Agent, Fenced, InvalidInput, SqliteStore, TaskContext
from orchestrator.integrations.openai_agents import OrchestratorSession
from orchestrator.locks import scripts
from orchestrator.locks.model import new_nonce
from orchestrator.store.keys import ScopeKeys
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.subprocesses import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def session(team: LocalTeam) -> OrchestratorSession:
    """A session without items."""
    return OrchestratorSession(team.orc.chat("user-7/é"))


def item(text: str, role: str = "user") -> Any:
    """An item."""
    return {"role": role, "content": text}


def contents(items: list[Any]) -> list[Any]:
    """The texts of items."""
    return [each["content"] for each in items]


async def test_add_get_clear(session: OrchestratorSession) -> None:
    """Items come back in order and unchanged; an empty batch is allowed; a cleared session can be used again."""
    assert isinstance(session, Session)
    assert session.session_id == "user-7/é"
    assert await session.get_items() == []
    await session.add_items([])
    items = [
        item("Hello"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1.0}', "id": "same"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny", "id": "same"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        item("O'Reilly; DROP TABLE x; -- \\ \n\t\0 日本語 🙂"),
        item(""),
        item("Hello"),
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items(items[:1])
    assert await session.get_items() == items[:1]


async def test_a_batch_is_added_whole_or_not_at_all(session: OrchestratorSession) -> None:
    """An item that cannot be stored keeps out the others of its batch."""
    await session.add_items([item("before")])
    with pytest.raises(InvalidInput):
        await session.add_items([item("one"), item("\ud800"), item("three")])
    assert contents(await session.get_items()) == ["before"]
    many = [item(f"{n}") for n in range(1200)]
    await session.add_items(many)
    assert contents(await session.get_items()) == ["before", *contents(many)]


async def test_a_large_batch_is_added_in_parts(session: OrchestratorSession) -> None:
    """Items of more than 4 MiB go in several appends; one that is too large keeps out all."""
    items = [item(f"{n}" + "z" * 200_000) for n in range(30)]
    await session.add_items(items)
    assert await session.get_items() == items
    with pytest.raises(InvalidInput):
        await session.add_items([*items[:25], item("\ud800")])
    assert len(await session.get_items()) == 30


@pytest.mark.parametrize(
    ("limit", "found"),
    [(None, ["2", "3", "4"]), (2, ["3", "4"]), (4, ["1", "2", "3", "4"]), (0, []), (-1, []), (99, list("01234"))],
)
async def test_limits(team: LocalTeam, limit: int | None, found: list[str]) -> None:
    """A given limit stands over that of the settings; the newest items count."""
    session = OrchestratorSession(team.orc.chat("s"), session_settings=SessionSettings(limit=3))
    await session.add_items([item(str(n)) for n in range(5)])
    assert contents(await session.get_items(limit)) == found


async def test_settings(team: LocalTeam) -> None:
    """Settings are those of the SDK."""
    chat = team.orc.chat("s")
    assert OrchestratorSession(chat).session_settings == SessionSettings()
    assert OrchestratorSession(chat, session_settings=SessionSettings(limit=5)).session_settings == SessionSettings(5)


async def test_a_limit_ends_at_items_and_not_at_pairs(session: OrchestratorSession) -> None:
    """The SDK leaves out the output without its call; the session returns what was asked for."""
    items: list[Any] = [
        item("weather?"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        item("It is sunny.", "assistant"),
    ]
    await session.add_items(items)
    assert await session.get_items(limit=2) == items[-2:]


async def test_pop(session: OrchestratorSession, team: LocalTeam) -> None:
    """The newest item goes, of this session alone; None at the end."""
    other = OrchestratorSession(team.orc.chat("other"))
    assert await session.pop_item() is None
    await session.add_items([item("a"), item("b")])
    await other.add_items([item("c")])
    assert [await session.pop_item() for _ in range(3)] == [item("b"), item("a"), None]
    assert contents(await other.get_items()) == ["c"]


async def test_a_damaged_record_hides_no_other(
    session: OrchestratorSession, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not count for a limit, and goes with the next item that is popped."""
    await session.add_items([item(str(n)) for n in range(6)])
    keys = session._chat._scope.keys
    key = keys.key(keys.chat_part("main", "q"))
    for place in (2, 4, 5):
        entry: Any = redis_client.lindex(key, place)
        damaged: Any = entry.rpartition(b",{")[0] + b",{{not json"
        redis_client.lset(key, place, damaged)
    assert contents(await session.get_items()) == ["0", "1", "3"]
    assert contents(await session.get_items(limit=2)) == ["1", "3"]
    assert await session.pop_item() == item("3")
    assert await session.pop_item() == item("1")
    assert contents(await session.get_items()) == ["0"]
    assert "chat_messages_unreadable" in caplog.text


async def test_many_writers(session: OrchestratorSession) -> None:
    """Batches of several tasks do not mix."""

    async def add(name: str) -> None:
        await session.add_items([item(f"{name}{n}") for n in range(5)])

    async with anyio.create_task_group() as tasks:
        for name in "abcdefgh":
            tasks.start_soon(add, name)
    found = contents(await session.get_items())
    batches = [found[first : first + 5] for first in range(0, 40, 5)]
    assert sorted(batches) == [[f"{name}{n}" for n in range(5)] for name in "abcdefgh"]


# ----------------------------------------------------------------------------------------------------------- its runner


def says(text: str) -> ResponseOutputMessage:
    """What the model says."""
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"{city}: sunny"


def texts_of(items: Any) -> list[str]:
    """What user and model said, and which tools were called."""
    return [
        each["content"] if isinstance(each.get("content"), str)
        else each["content"][0]["text"] if "content" in each
        else each["type"]
        for each in items
    ]  # fmt: skip


async def test_the_runner_over_two_turns(team: LocalTeam, redis_client: redis.Redis, tmp_path: Path) -> None:
    """The second turn, of another process in effect, gets the first with its tool call; also after a loss of Redis."""
    call = ResponseFunctionToolCall(arguments='{"city": "Ulm"}', call_id="c1", name="weather", type="function_call")
    model = ScriptedModel([[call], [says("Sunny.")], [says("Also sunny.")], [says("Yes.")]])
    agent = SdkAgent(name="guide", model=model, tools=[weather])
    config = RunConfig(tracing_disabled=True)
    async with SqliteStore(tmp_path / "chats.db") as store:
        chat = team.orc.chat("s").kept_in(store)
        first = await Runner.run(agent, "Ulm?", session=OrchestratorSession(chat), run_config=config)
        assert first.final_output == "Sunny."
        for key in redis_client.keys(f"{chat._scope.keys.root}:chat*"):
            redis_client.delete(key)
        await Runner.run(agent, "And Bonn?", session=OrchestratorSession(chat), run_config=config)
    history = ["Ulm?", "function_call", "function_call_output", "Sunny.", "And Bonn?"]
    assert texts_of(model.calls[2].input) == history
    bare = OrchestratorSession(team.orc.chat("s"))
    assert texts_of(await bare.get_items()) == [*history, "Also sunny."]
    limited = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=4))
    await Runner.run(agent, "Sure?", session=bare, run_config=limited)
    # The call is outside of the limit, and so the SDK leaves out its output.
    assert texts_of(model.calls[3].input) == ["Sunny.", "And Bonn?", "Also sunny.", "Sure?"]


async def test_a_late_attempt_adds_nothing(team: LocalTeam) -> None:
    """The history of an attempt is written under its lock: one that lost its task adds no items."""
    agent = Agent("guide")

    @agent.skill
    async def answer(ctx: TaskContext) -> str:
        session = OrchestratorSession(ctx.chat)
        await session.add_items([item("question")])
        held = await ctx._resources.locks.execution.session.proof()
        generation, keys = int(held.value.split(":")[2]) + 1, ScopeKeys(team.services.keys.prefix, "session", "s")
        call = scripts.claim(
            keys, lock=held.lock, task=ctx.task_id, generation=str(generation), nonce=new_nonce(), ttl_ms=60_000
        )
        assert (await team.services.store.call(call)).status == "taken"
        with pytest.raises(Fenced):
            await session.add_items([item("answer")])
        return "done"

    await team.work(agent)
    handle = await team.orc.submit(answer, session="s")
    await handle.result(TIMEOUT_S)
    assert contents(await OrchestratorSession(team.orc.chat("s")).get_items()) == ["question"]


async def test_without_the_sdk() -> None:
    """One line tells what to install."""
    program = (
        "import sys\nsys.modules['agents'] = None\n"
        "try:\n    import orchestrator.integrations.openai_agents\n"
        "except Exception as failed:\n    print(type(failed).__name__, failed)"
    )
    done = await anyio.run_process([sys.executable, "-c", program], cwd=ROOT)
    line = "OrchestratorSession needs the OpenAI Agents SDK; run `pip install 'redis-orchestrator[openai-agents]'`"
    assert done.stdout.decode() == f"ConfigError {line}\n"
