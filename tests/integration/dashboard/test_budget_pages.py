"""The pages of budgets, their forms, and the same over the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from orchestrator import Agent, BudgetExhausted, TaskContext, TaskState
from orchestrator.accounts.model import AccountScope, Role
from orchestrator.budgets.queries import read_held
from orchestrator.core.amounts import Amounts
from orchestrator.core.ids import new_task_id
from orchestrator.views.budget_pages import (
    BUDGETS,
    ENTRIES,
    MOST_HOLDS,
    MOST_LOOKED,
    budgets_without_room,
    page_budgets,
    read_budget_page,
)
from orchestrator.views.budgets import show_budget
from orchestrator.views.concerns import concerns
from orchestrator.views.control import list_commands
from orchestrator.views.health import read_health
from tests.helpers.api_client import api_client
from tests.helpers.counted_reads import counted_reads
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam

HOSTILE: Final = ("<script>alert(1)</script>", "100%25", "größe\u202e", '"><img src=x>', "a/b", "{{7*7}}")
NARROWED: Final = AccountScope(frozenset({"lab"}))


class Lab:
    """An agent whose task holds an amount until the gate opens."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.agent = Agent("lab", concurrency=8)

        @self.agent.skill(max_attempts=1)
        async def study(ctx: TaskContext, usd: float = 1.0) -> str:
            try:
                async with ctx.spend(usd=usd, tokens=1000):
                    await self.gate.wait()
            except BudgetExhausted:
                return "partial"
            return "done"


async def holds_back(team: LocalTeam) -> tuple[Lab, TaskHandle[Any], TaskHandle[Any]]:
    """Let one task hold all of the budget `run`, and another one wait for it."""
    lab = Lab()
    await team.orc.admin.set_budget("run", usd=1, tokens="1M", per="day")
    await team.work(lab.agent)

    async def held(attempts: int, waiting: int) -> bool:
        view = await show_budget(team.services, "run")
        return (view.attempts, view.waiting) == (attempts, waiting)

    first = await team.orc.submit("study", budget="run", session="s 1")
    await wait_for(lambda: held(1, 0), "the hold", TIMEOUT_S)
    second = await team.orc.submit("study", budget="run")
    await wait_for(lambda: held(1, 1), "the waiting task", TIMEOUT_S)
    return lab, first, second


async def logged_in(team: LocalTeam, role: Role, scope: AccountScope = AccountScope()) -> WebClient:  # noqa: B008
    """Return a browser of a new user."""
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user(role.word, role, "correct horse", scope=scope)
    answer = await web.post("/login", {"name": role.word, "password": "correct horse"})
    assert answer.status_code == 303, answer.text
    return web


async def test_one_budget(team: LocalTeam) -> None:
    """Its page names the attempt with a hold and the waiting task; a form raises the limit, so that this starts."""
    lab, first, second = await holds_back(team)
    found = await read_budget_page(team.services, "run")
    (hold,) = found.holds
    assert (hold.task, hold.attempt, hold.calls) == (first.id, 1, 1)
    assert hold.amounts == {"usd": 1, "tokens": 1000, "calls": 1}
    assert hold.since >= (await first.info()).submitted_at
    assert [one.task.id for one in found.waiting] == [second.id]
    assert (found.budget.state, found.budget.past_soft, found.budget.per) == ("exhausted", True, "day")
    assert found.budget.resets_at is not None
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get("/budgets/run")).text
    assert f'href="/tasks/{first.id}"' in page
    assert f'href="/tasks/{second.id}"' in page
    assert "1 task waits" in page
    assert "each day, next <time" in page
    assert "any amount" in page
    assert 'href="/budgets/run"' in (await web.get("/budgets")).text
    form = await web.form("/budgets/run", "/commands/set-budget")
    refused = await web.post("/commands/set-budget", form | {"usd": "-1"})
    assert refused.status_code == 400
    assert (await show_budget(team.services, "run")).units[0].limit == 1
    given = form | {"usd": "3", "soft": "0.5", "reason": "second half"}
    answer = await web.post("/commands/set-budget", given)
    assert answer.status_code == 303, answer.text
    assert (await web.post("/commands/set-budget", given)).headers["location"].endswith("?replayed=1")
    (record, *_) = await list_commands(team.services)
    assert (record.kind, record.actor, record.reason) == ("set-budget", "web:local", "second half")
    view = await show_budget(team.services, "run")
    assert (view.units[0].limit, view.units[1].limit, view.soft, view.per) == (3, 1_000_000, 0.5, "day")
    lab.gate.set()
    for handle in (first, second):
        assert await handle.result(TIMEOUT_S) == "done"
    form = await web.form("/budgets/run", "/commands/set-budget")
    below = await web.post("/commands/set-budget", form | {"usd": "1"})
    assert below.status_code == 409, below.text
    assert "spent" in below.text
    form = await web.form("/budgets/run", "/commands/delete-budget")
    assert (await web.post("/commands/delete-budget", form)).status_code == 303
    assert (await web.get("/budgets/run")).status_code == 404


async def test_a_new_budget(team: LocalTeam) -> None:
    """The form of the list sets one that was not there, with the default soft line and policies."""
    web = WebClient(team.orc)
    await web.log_in()
    assert "No budget is set." in (await web.get("/budgets")).text
    form = await web.form("/budgets", "/commands/set-budget")
    answer = await web.post("/commands/set-budget", form | {"budget": "run-7", "tokens": "2M", "at_hard": "ask"})
    assert answer.status_code == 303, answer.text
    view = await show_budget(team.services, "run-7")
    assert [(unit.unit, unit.limit) for unit in view.units] == [("tokens", 2_000_000)]
    assert (view.at_hard, view.lost, view.soft, view.per) == ("ask", "spent", 0.8, "ever")
    form = await web.form("/budgets", "/commands/set-budget")
    assert (await web.post("/commands/set-budget", form | {"budget": HOSTILE[0], "usd": "1"})).status_code == 400


@pytest.mark.parametrize(
    ("unit", "typed", "said"),
    [
        ("usd", "-1", "must not be negative"),
        ("usd", "NaN", "is not understood"),
        ("usd", "1e999", "is not understood"),
        ("usd", "2,5", "is not understood"),
        ("tokens", "9007199255", "must be at most"),
        ("usd", "1", "2 usd is spent already"),
        ("soft", "1.5", "less than or equal to 1"),
        ("soft", "nan", "finite number"),
        ("per", "week", "per:"),
    ],
)
async def test_a_refused_form_keeps_what_was_typed(team: LocalTeam, unit: str, typed: str, said: str) -> None:
    """It says what is wrong, and its next submit needs only the correction."""
    await team.orc.admin.set_budget("run", usd=3)
    await team.services.store.execute("HSET", team.services.keys.budget("run"), "spent", "2000000 0 0 0")
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/budgets/run", "/commands/set-budget")
    wrong = form | {"calls": "40", "at_hard": "ask", "reason": "more <b>calls</b>", unit: typed}
    refused = await web.post("/commands/set-budget", wrong)
    assert refused.status_code == (409 if said.endswith("spent already") else 400), refused.text
    problem = refused.text.partition('role="alert">')[2].partition("</p>")[0]
    assert said in problem
    for name, value in (("budget", "run"), ("calls", "40"), ("reason", "more &lt;b&gt;calls&lt;/b&gt;")):
        assert f'name="{name}" value="{value}"' in refused.text
    assert "<option selected>ask</option>" in refused.text
    if unit != "per":
        assert f'name="{unit}" value="{typed}"' in refused.text
    main = refused.text.partition("<main")[2]
    new_id = main.partition('name="id" value="')[2].partition('"')[0]
    assert new_id != form["id"]
    right = wrong | {"id": new_id, unit: {"soft": "0.9", "per": "day"}.get(unit, "5")}
    answer = await web.post("/commands/set-budget", right)
    assert answer.status_code == 303, answer.text
    view = await show_budget(team.services, "run")
    assert ("calls", 40) in [(one.unit, one.limit) for one in view.units]
    assert view.at_hard == "ask"


async def test_blanks_are_empty_fields(team: LocalTeam) -> None:
    """A field of blanks changes nothing, as an empty one does."""
    await team.orc.admin.set_budget("run", usd=3)
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/budgets/run", "/commands/set-budget")
    answer = await web.post("/commands/set-budget", form | {"usd": "  ", "soft": " ", "tokens": " 2M "})
    assert answer.status_code == 303, answer.text
    view = await show_budget(team.services, "run")
    assert [(one.unit, one.limit) for one in view.units] == [("usd", 3), ("tokens", 2_000_000)]


async def test_small_and_large_amounts(team: LocalTeam) -> None:
    """Pages write them as numbers without an exponent; JSON numbers with one are accepted."""
    api = await api_client(team.orc, Role.OPERATOR)
    given = await api.post("/commands/set-budget", {"budget": "tiny", "usd": 1e-05, "tokens": 9007199254})
    assert given.status_code == 200, given.text
    await team.services.store.execute("HSET", team.services.keys.budget("tiny"), "spent", "1 0 0 0")
    web = WebClient(team.orc)
    await web.log_in()
    for path in ("/budgets", "/budgets/tiny"):
        page = (await web.get(path)).text
        for said in ("0.00001", "0.000001", "0.000009", "9,007,199,254"):
            assert f'<td class="number">{said}</td>' in page, (path, said)


async def test_the_page_of_a_task(team: LocalTeam) -> None:
    """It names the budgets of the task with what its attempt holds, and the budget that it waits for."""
    _, first, second = await holds_back(team)
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get(f"/tasks/{first.id}")).text
    part = page.partition('id="budgets"')[2].partition("</section>")[0]
    assert 'href="/budgets/run"' in part
    assert "1 usd, 1,000 tokens, 1 call in 1 open call" in part
    waits = (await web.get(f"/tasks/{second.id}")).text
    obstacle = waits.partition('id="obstacle"')[2].partition("</section>")[0]
    assert 'href="/budgets/run"' in obstacle
    narrowed = await logged_in(team, Role.OPERATOR, NARROWED)
    shown = (await narrowed.get(f"/tasks/{first.id}")).text
    assert "1,000 tokens" in shown  # what its own task holds, and nothing of the budget of all
    assert "/budgets/run" not in shown
    assert "Tasks that wait" not in shown
    assert (await narrowed.get("/budgets/run")).status_code == 403
    api = await api_client(team.orc, Role.VIEWER, scope=AccountScope(queues=frozenset({"skill:study"})))
    told = await api.read(f"/tasks/{second.id}")
    assert told["info"]["why"] == told["why"]["text"] == "waits for room in budget 'run'"


async def test_a_narrowed_user_grants_nothing(team: LocalTeam) -> None:
    """The answer to a task that needs more of a budget is refused, unless it refuses; the question has no amounts."""
    agent = Agent("lab")

    @agent.skill
    async def study(ctx: TaskContext) -> str:
        try:
            async with ctx.spend(usd=5):
                return "done"
        except BudgetExhausted:
            return "partial"

    await team.orc.admin.set_budget("run", usd=1, at_hard="ask")
    await team.work(agent)
    handle = await team.orc.submit("study", budget="run", agent="lab")

    async def asks() -> bool:
        return (await handle.status()).state is TaskState.AWAITING_INPUT

    await wait_for(asks, "the question", TIMEOUT_S)
    narrowed = await api_client(team.orc, Role.OPERATOR, scope=NARROWED)
    web = await logged_in(team, Role.OPERATOR, NARROWED)
    told, page = await narrowed.read(f"/tasks/{handle.id}"), (await web.get(f"/tasks/{handle.id}")).text
    asked = "may the task have more of budget 'run'?"
    assert told["info"]["questions"][0]["question"] == told["why"]["question"] == asked
    assert told["info"]["why"] == told["why"]["text"] == f"asks {asked!r}"
    assert "5 usd" not in page
    path = f"/tasks/{handle.id}/answer"
    for refused in (
        await narrowed.post(path, {"value": 1000, "question": 1}),
        await web.post(path, {"value": "1000", "number": "1"}),
    ):
        assert refused.status_code == 403, refused.text
        assert "may not add to budget" in refused.text
    assert (await show_budget(team.services, "run")).units[0].limit == 1
    assert (await narrowed.post(path, {"value": 0, "question": 1})).status_code == 200
    assert await handle.result(TIMEOUT_S) == "partial"


async def test_rights(team: LocalTeam) -> None:
    """A viewer reads without forms and is refused, an operator may set; a read-only dashboard has no form either."""
    await team.orc.admin.set_budget("run", usd=1)
    viewer = await logged_in(team, Role.VIEWER)
    for path in ("/budgets", "/budgets/run"):
        page = (await viewer.get(path)).text
        assert "run" in page
        assert "/commands/set-budget" not in page
        assert "/commands/delete-budget" not in page
    given = {"id": new_task_id(), "budget": "run", "usd": "9"}
    assert (await viewer.post("/commands/set-budget", given)).status_code == 403
    operator = await logged_in(team, Role.OPERATOR)
    assert await operator.form("/budgets/run", "/commands/set-budget")
    still = WebClient(team.orc, read_only=True)
    await still.log_in()
    assert "/commands/set-budget" not in (await still.get("/budgets/run")).text
    assert (await still.post("/commands/set-budget", given)).status_code == 403
    assert (await show_budget(team.services, "run")).units[0].limit == 1


async def test_what_needs_attention(team: LocalTeam) -> None:
    """The overview names a budget at its limit for which a task waits, and no other one."""
    await team.orc.admin.set_budget("free", usd=1)
    lab, first, second = await holds_back(team)
    health = await read_health(team.services)
    assert [one.budget for one in health.budgets] == ["run"]
    told = [one for one in concerns(health, ()) if one.path == "/budgets/run"]
    assert [one.text for one in told] == ["budget run is exhausted, and 1 task waits for it"]
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get("/")).text
    assert 'href="/budgets/run"' in page.partition('id="concerns"')[2].partition("</section>")[0]
    await team.orc.admin.set_budget("run", usd=5)
    lab.gate.set()
    for handle in (first, second):
        await handle.result(TIMEOUT_S)
    assert (await read_health(team.services)).budgets == ()


async def test_many_budgets_with_waiting_tasks(team: LocalTeam) -> None:
    """A budget without room is named also when many others, earlier by name, have attempts that will free some."""
    store, keys = team.services.store, team.services.keys
    names = [f"b-{n:03}" for n in range(60)]
    commands: list[tuple[str, ...]] = []
    for name in [*names, "z"]:
        scope = keys.budget_scope(name)
        spent = "1000000 0 0 0" if name == "z" else "0 0 0 0"
        commands += [
            ("HSET", keys.budget(name), "limit", "1000000 - - -", "spent", spent, "held", "0 0 0 0"),
            ("ZADD", keys.held(scope), "1", new_task_id()),
            ("SADD", keys.suspended_scopes, scope),
        ]
        if name != "z":
            commands.append(("HSET", keys.holds(name), f"{new_task_id()}:1", "0;1 5 0 0 0"))
    await store.pipeline(commands)
    assert [one.budget for one in (await read_health(team.services)).budgets] == ["z"]
    for name in [*names, "z"]:
        await store.execute("DEL", keys.budget(name), keys.holds(name), keys.held(keys.budget_scope(name)))
    await store.execute("DEL", keys.suspended_scopes)


async def test_more_budgets_with_waiting_tasks_than_a_minute_looks_at(team: LocalTeam) -> None:
    """The overview says how many are left, and looks at these in the next minute."""
    store, keys = team.services.store, team.services.keys
    names = [f"b-{n:03}" for n in range(MOST_LOOKED + 40)]
    scopes = [keys.budget_scope(name) for name in names]
    for name in names[-11:]:
        spent = ("HSET", keys.budget(name), "limit", "5 - - -", "spent", "5 0 0 0", "held", "0 0 0 0")
        await store.pipeline([spent, ("ZADD", keys.held(keys.budget_scope(name)), 1, new_task_id())])
    packed = [scope.encode() for scope in scopes]
    assert await budgets_without_room(team.services, packed, 0) == ((), 40)
    found, rest = await budgets_without_room(team.services, packed, 1)
    assert [one.budget for one in found] == names[-11:-1]
    assert rest == 40 + 1
    await store.execute("SADD", keys.suspended_scopes, *scopes)
    health = await read_health(team.services)
    assert health.more_budgets in {40, 41}
    assert f"tasks wait for {health.more_budgets} more budgets" in [one.text for one in concerns(health, ())]
    web = WebClient(team.orc)
    await web.log_in()
    part = (await web.get("/")).text.partition('id="concerns"')[2].partition("</section>")[0]
    assert "more budgets</a>" in part
    for name in names[-11:]:
        await store.execute("DEL", keys.budget(name), keys.held(keys.budget_scope(name)))
    await store.execute("DEL", keys.suspended_scopes)


async def test_too_little_left(team: LocalTeam) -> None:
    """A task whose start needs more than is left does not start, so the overview names its budget too."""
    agent = Agent("lab")

    @agent.skill(reserve={"usd": 0.5})
    async def study() -> None:
        """Study."""

    await team.work(agent)
    await team.orc.admin.set_budget("run", usd=0.25)
    await team.orc.submit("study", budget="run")

    async def named() -> bool:
        told = [one.text for one in concerns(await read_health(team.services), ())]
        return "budget run has too little left, and 1 task waits for it" in told

    await wait_for(named, "the concern", TIMEOUT_S)
    (wait,) = (await read_budget_page(team.services, "run")).waiting
    assert wait.need == {"usd": 0.5}


async def test_hostile_names(team: LocalTeam) -> None:
    """Names that no program stores are shown as text, and their links lead nowhere else."""
    store, keys = team.services.store, team.services.keys
    await store.execute("SADD", keys.budgets, *HOSTILE)
    for name in HOSTILE:
        fields = ("limit", "1000000 - - -", "spent", "2000000 0 0 0", "held", "0 0 0 0")
        await store.execute("HSET", keys.budget(name), *fields)
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get("/budgets")).text
    assert page.count("1 overspent</span>") == len(HOSTILE)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "%3Cscript%3Ealert%281%29%3C%2Fscript%3E" in page
    assert "/budgets/100%2525" in page
    assert not {"<script>alert", "<img", "\u202e"} & {
        part for part in ("<script>alert", "<img", "\u202e") if part in page
    }
    for path in ("/budgets/%3Cscript%3E", "/budgets/100%2525", "/budgets/gr%C3%B6%C3%9Fe"):
        answer = await web.get(path)
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text
    assert (await web.get("/budgets?starts=%3Cscript")).text.count("1 overspent</span>") == 1
    await store.execute("DEL", keys.budgets, *map(keys.budget, HOSTILE))


@pytest.mark.parametrize("key", ["budgets", "budget", "holds", "held", "suspended_scopes"])
async def test_a_key_of_another_type(team: LocalTeam, key: str) -> None:
    """Pages and API answer without what the key should have."""
    await team.orc.admin.set_budget("run", usd=1)
    store, keys = team.services.store, team.services.keys
    wrong = {
        "budgets": keys.budgets,
        "budget": keys.budget("run"),
        "holds": keys.holds("run"),
        "held": keys.held(keys.budget_scope("run")),
        "suspended_scopes": keys.suspended_scopes,
    }[key]
    await store.pipeline([("DEL", wrong), ("SET", wrong, "x"), ("EXPIRE", wrong, 60)])
    web = WebClient(team.orc)
    await web.log_in()
    for path in ("/", "/budgets", "/budgets/run", "/api/v1/budgets", "/api/v1/budgets/run", "/api/v1/overview"):
        answer = await web.get(path)
        assert answer.status_code == 200, (path, answer.text)
    if key == "budget":
        assert "are damaged" in (await web.get("/budgets/run")).text
    await store.execute("DEL", wrong)


async def test_a_thousand_budgets(team: LocalTeam) -> None:
    """Pages go through all of them by name, each with three round trips and at most 200 kB."""
    store, keys = team.services.store, team.services.keys
    names = [f"{'x' * 100}-{n:04}" for n in range(1000)]
    fields = ("limit", "2000000 9000000 9000000 9000000", "spent", "3000000 1 1 1", "held", "1 1 1 1", "per", "day")
    await store.pipeline([*(("HSET", keys.budget(name), *fields) for name in names), ("SADD", keys.budgets, *names)])
    shown, cursor = list[str](), None
    while True:
        page = await page_budgets(team.services, after=cursor)
        shown += [one.budget for one in page.budgets]
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.budgets) == BUDGETS
    assert shown == names
    web = WebClient(team.orc)
    await web.log_in()
    await web.get("/budgets")
    web.dashboard.forget_reads()
    with pytest.MonkeyPatch.context() as patch, counted_reads(store, patch) as counted:
        answer = await web.get(f"/budgets?after={names[99]}")
    assert names[100] in answer.text
    assert answer.text.count('<th scope="rowgroup"') == BUDGETS
    assert counted.trips <= 3
    assert len(answer.content) < 200_000
    await store.execute("DEL", keys.budgets, *map(keys.budget, names))


async def test_many_holds_and_tasks(team: LocalTeam) -> None:
    """Each list of a budget has pages of its own, in a fixed number of round trips; some tasks are gone."""
    store, keys = team.services.store, team.services.keys
    # Not in the list of budgets, so that the supervisor does not book these holds.
    await store.execute("HSET", keys.budget("run"), "limit", "1000000 - - -", "spent", "0 0 0 0", "held", "0 0 0 0")
    ids = [new_task_id() for _ in range(60)]
    waiting = [(await team.orc.submit("unknown-skill")).id for _ in range(ENTRIES + 5)]
    for at, id_ in enumerate(ids):
        await store.execute("HSET", keys.holds("run"), f"{id_}:17", f"2;0 1 0 0 0;3 {at} 0 1000000 0;4")
    for at, id_ in enumerate(waiting):
        await store.execute("ZADD", keys.held(keys.budget_scope("run")), at, id_)
        await store.execute("HSET", keys.task(id_), "need", f"run {at + 1} 0 0 0")
    api = await api_client(team.orc, Role.VIEWER)
    found = await api.read("/budgets/run")
    assert len(found["holds"]) == ENTRIES
    assert found["holds"][7] == {
        "task": ids[7], "attempt": None, "state": None, "amounts": {"usd": 8e-06, "calls": 1}, "calls": 1,
        "since": "1970-01-01T00:00:00.017000+00:00",
    }  # fmt: skip
    second = await api.read("/budgets/run", holds_after=found["holds_cursor"])
    third = await api.read("/budgets/run", holds_after=second["holds_cursor"])
    assert [one["task"] for page in (found, second, third) for one in page["holds"]] == ids
    assert third["holds_cursor"] is None
    with pytest.MonkeyPatch.context() as patch, counted_reads(store, patch) as counted:
        rest = await api.read("/budgets/run", after=found["cursor"])
    assert counted.trips <= 6  # with the token
    assert [one["task"]["id"] for page in (found, rest) for one in page["waiting"]] == waiting
    assert found["waiting"][1]["need"] == {"usd": 2e-06}
    assert (await api.get("/budgets/run", after="x")).status_code == 400
    small = await api.read("/budgets/run", limit=2)
    assert [one["task"] for one in small["holds"]] == ids[:2]
    assert [one["task"]["id"] for one in small["waiting"]] == waiting[:2]
    assert (small["holds_cursor"] is None, small["cursor"] is None, small["holds_more"]) == (False, False, False)
    assert (await api.get("/budgets/run", limit=ENTRIES + 1)).status_code == 400
    await store.execute("DEL", keys.holds("run"), keys.held(keys.budget_scope("run")))


async def test_more_holds_than_a_page_looks_at(team: LocalTeam) -> None:
    """The page and the API say that the pages may leave attempts out."""
    store, keys = team.services.store, team.services.keys
    # Not in the list of budgets, so that the supervisor does not book these holds.
    await store.execute("HSET", keys.budget("run"), "limit", "5 - - -", "spent", "0 0 0 0", "held", "0 0 0 0")

    async def hold(numbers: range) -> None:
        fields = [word for number in numbers for word in (f"{number:032x}:1", "0;1 5 0 0 0")]
        await store.execute("HSET", keys.holds("run"), *fields)

    await hold(range(MOST_HOLDS))
    assert not (await read_budget_page(team.services, "run")).holds_more
    await hold(range(MOST_HOLDS, MOST_HOLDS + 500))
    api = await api_client(team.orc, Role.VIEWER)
    assert (await api.read("/budgets/run"))["holds_more"]
    web = WebClient(team.orc)
    await web.log_in()
    assert "Looked at 10,000 of 10,500 attempts." in (await web.get("/budgets/run")).text
    await store.execute("DEL", keys.budget("run"), keys.holds("run"))


@pytest.mark.parametrize(
    ("stored", "amounts", "calls"),
    [
        (None, Amounts(), 0),
        (b"0;0 5 0 1 0", Amounts(5, 0, 1, 0), 0),
        (b"2;0 5 0 1 0;3 1 2 3 4;4;5 1 0 0 0", Amounts(7, 2, 4, 4), 2),
        (b"x;1 a b c d", Amounts(), 0),
        (b"0;1 1 2 3", Amounts(), 0),
    ],
)
def test_what_an_attempt_holds(stored: bytes | None, amounts: Amounts, calls: int) -> None:
    """All open amounts count, and calls without those of the start; a damaged value holds nothing."""
    assert read_held(stored) == (amounts, calls)


async def test_by_the_api(team: LocalTeam) -> None:
    """A program sets a budget, submits a task with it, and reads what it holds; others may only read."""
    api = await api_client(team.orc, Role.OPERATOR)
    refused = await api.post("/tasks", {"skill": "study", "budget": "run"})
    assert refused.status_code == 409, refused.text
    assert "is not set" in refused.json()["detail"]
    given = await api.post("/commands/set-budget", {"budget": "run", "usd": "2", "soft": 0.5}, key="k")
    assert given.json()["new"] is True, given.text
    again = await api.post("/commands/set-budget", {"budget": "run", "usd": "2", "soft": 0.5}, key="k")
    assert again.headers["Idempotent-Replayed"] == "true"
    for wrong in ("-1", "nan", "1e400", "two"):
        assert (await api.post("/commands/set-budget", {"budget": "run", "usd": wrong})).status_code == 400
    lab = Lab()
    await team.work(lab.agent)
    await api.post("/commands/set-budget", {"budget": "more", "tokens": "1M"})
    task = (await api.post("/tasks", {"skill": "study", "budget": ["run", "more"]})).json()["task"]

    async def held() -> bool:
        return bool((await api.read("/budgets/more"))["holds"])

    await wait_for(held, "the hold", TIMEOUT_S)
    (hold,) = (await api.read("/budgets/run"))["holds"]
    assert (hold["task"], hold["attempt"], hold["state"]) == (task, 1, "running")
    told = await api.read(f"/tasks/{task}")
    assert (told["info"]["budgets"], told["budgets"]) == (["run", "more"], ["run", "more"])
    listed = await api.read("/budgets", starts="r")
    assert [(one["budget"], one["state"], one["attempts"]) for one in listed["budgets"]] == [("run", "soft", 1)]
    page = await api.read("/budgets", limit=1)
    assert [one["budget"] for one in page["budgets"]] == ["more"]
    assert (await api.read("/budgets", after=page["cursor"]))["budgets"][0]["budget"] == "run"
    lab.gate.set()
    await api.events(task)
    for wrong, status in (("nothing", 404), ("<x>", 400)):
        assert (await api.get(f"/budgets/{wrong}")).status_code == status
    viewer = await api_client(team.orc, Role.VIEWER)
    assert (await viewer.get("/budgets")).status_code == 200
    assert (await viewer.post("/commands/set-budget", {"budget": "run", "usd": "9"})).status_code == 403
    narrowed = await api_client(team.orc, Role.OPERATOR, scope=NARROWED)
    assert (await narrowed.get("/budgets/run")).status_code == 403
    body = {"skill": "study", "agent": "lab", "budget": "run"}
    assert (await narrowed.post("/tasks", body)).status_code == 403
    own = await narrowed.post("/tasks", body | {"budget": None})
    assert own.status_code == 200


async def test_a_narrowed_user_names_no_budget(team: LocalTeam) -> None:
    """A budget belongs to the whole pool; without one the same form is accepted."""
    await team.orc.admin.set_budget("run", usd=1)
    web = await logged_in(team, Role.OPERATOR, NARROWED)
    form = {"id": new_task_id(), "skill": "study", "as": "json", "args": "{}", "agent": "lab"}
    refused = await web.post("/submit", form | {"budget": "run"})
    assert refused.status_code == 403
    assert "only tasks without a budget" in refused.text
    assert (await web.post("/submit", form)).status_code == 303


async def test_a_form_submits_with_budgets(team: LocalTeam) -> None:
    """The budgets of the form are those of the task, and are filled in when it is submitted again."""
    await team.orc.admin.set_budget("run", usd=1)
    await team.orc.admin.set_budget("more", usd=1)
    web = WebClient(team.orc)
    await web.log_in()
    form = await web.form("/submit?skill=unknown-skill", "/submit")
    answer = await web.post("/submit", form | {"args": "{}", "budget": "run more"})
    assert answer.status_code == 303, answer.text
    task = answer.headers["location"].rpartition("/")[2]
    handle = team.orc.task(task)
    assert (await handle.info()).budgets == ("run", "more")
    assert 'name="budget" value="run more"' in (await web.get(f"/submit?from={task}")).text
    form = await web.form("/submit?skill=unknown-skill", "/submit")
    refused = await web.post("/submit", form | {"args": "{}", "budget": "unset"})
    assert refused.status_code == 409
    assert "is not set" in refused.text
    assert 'name="budget" value="unset"' in refused.text
