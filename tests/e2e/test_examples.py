"""The examples run as their first lines say: most with `orc up` in one terminal, the file or `orc tasks` in another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faultkit.processes import ActorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENTS = (
    "my_agents:agent",
    "rate_limited:agent",
    "parent_children:team",
    "outbox:agent",
    "support_agent:agent",
    "one_dollar:team",
)
ORC = str(Path(sys.executable).with_name("orc"))


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a second terminal, while `orc up` runs all examples in the first."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORC_")}
    environ["ORC_DATA_DIR"] = str(tmp_path_factory.mktemp("examples") / "data")
    with ActorProcess([ORC, "up", *AGENTS], name="orc-up", env=environ, cwd=EXAMPLES) as up:
        for agent in ("greeter", "oracle", "planner", "counter", "warehouse", "support", "lead", "reader"):
            up.wait_output(agent, timeout_s=20)
        yield environ
        up.terminate()
        assert up.wait_exit(20) == 0, up.output


def run(environ: dict[str, str], *command: str) -> str:
    """Type a command in the second terminal; answer what it printed."""
    done = subprocess.run(command, cwd=EXAMPLES, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ten_line_agent(terminal: dict[str, str]) -> None:
    """A task that is submitted in another terminal shows its result there."""
    printed = run(terminal, ORC, "tasks", "submit", "greet", "-a", "name=Ada", "--wait")
    assert printed == '"Hello, Ada! This was attempt 1."\n'


@pytest.mark.slow
def test_rate_limited(terminal: dict[str, str]) -> None:
    """Fifteen starts at five a second need the rest of three windows: two seconds at least."""
    printed = run(terminal, sys.executable, "rate_limited.py")
    found = re.fullmatch(r"15 answers in (\d+\.\d) s; the last one: question 14: yes\n", printed)
    assert found, printed
    assert float(found[1]) >= 2.0


def test_one_dollar(terminal: dict[str, str]) -> None:
    """Three pages of five fit the budget; the other two wait until a person has granted more."""
    printed = run(terminal, sys.executable, "one_dollar.py")
    line = "budget 'research' has no room: 0.1 of 1 usd is left, and 0.3 is needed\n"
    assert printed == f"{line}{line}5 answers\n"


def test_support_agent(terminal: dict[str, str]) -> None:
    """The agent learns the documentation, answers from it, and knows what a further question is about."""
    ask = (ORC, "tasks", "submit", "answer", "--session", "ada", "--wait", "-a")
    assert int(run(terminal, ORC, "tasks", "submit", "learn", "--wait")) > 80
    assert "textwrap.wrap: " in run(terminal, *ask, "question=How do I wrap text with textwrap?")
    assert "textwrap.dedent: " in run(terminal, *ask, "question=And how do I dedent it?")
    assert "And how do I dedent it?" in run(terminal, ORC, "chat", "show", "ada")


def test_support_agent_with_the_manual(terminal: dict[str, str]) -> None:
    """The agent learns this project's manual, and answers a customer from it."""
    learned = run(terminal, ORC, "tasks", "submit", "learn_manual", "--wait")
    assert re.fullmatch(r'"\d{3,} sections, embedded by WordLlamaEmbedder\(\)"\n', learned)
    question = "question=How do I take a backup?"
    answered = run(terminal, ORC, "tasks", "submit", "answer_customer", "--session", "bob", "--wait", "-a", question)
    assert "guides/backup.md, " in answered


@pytest.mark.slow
def test_support_agent_in_one_command(terminal: dict[str, str]) -> None:
    """The file starts all that it needs, says which embedder it uses, and answers."""
    printed = run(terminal, sys.executable, "support_agent.py", "What is a dead letter?")
    first, _, question, place, *_ = printed.splitlines()
    assert re.fullmatch(r"\d{3,} sections, embedded by WordLlamaEmbedder\(\)", first)
    assert question == "What is a dead letter?"
    assert re.fullmatch(r"(README|guides|tutorial|reference)\S+, .* \(0\.\d\d\)", place)


def test_parent_children(terminal: dict[str, str]) -> None:
    """The second attempt of a parent finds the children of the first, which run once."""
    printed = run(terminal, sys.executable, "parent_children.py")
    assert printed == "6 words, counted in attempt 2\n3 children, executed 3 times\n"


@pytest.mark.slow
def test_outbox(terminal: dict[str, str]) -> None:
    """What was committed is sent once and runs; what was rolled back is not sent."""
    printed = run(terminal, sys.executable, "outbox.py")
    assert re.fullmatch(
        "rolled back: UNIQUE constraint failed: orders.number\n2 sent, then 0\n"
        r"order 1: a kettle \(parcel \w{4}…\)\norder 2: a teapot \(parcel \w{4}…\)\n",
        printed,
    ), printed


@pytest.mark.slow
def test_two_editors(terminal: dict[str, str]) -> None:
    """What a thawed process writes is refused, whoever has the lock by then; the document holds every edit once."""
    lines = [line.partition(" ")[2].strip() for line in run(terminal, sys.executable, "two_editors.py").splitlines()]
    (refused,) = [line for line in lines if "Fenced" in line]
    assert refused.startswith("ada: would have made ['ada 1', 'ada 2'] of it. Fenced: this attempt no longer owns task")
    bobs = lines.index("bob: 'bob 1' is written, version 2 of the document")
    assert lines.index("ada: has read the document and freezes") < bobs
    assert lines[0].startswith("ada: has the document to herself, fence ")
    assert lines[-1] == "main: the document: ['ada 1', 'bob 1', 'bob 2', 'ada 2']"


def test_examples_have_no_file_without_test() -> None:
    """Each example is run above; test files by `test_pytest_plugin`, the team by tests/docs/test_first_team.py."""
    run_above = {agent.partition(":")[0] for agent in AGENTS} | {"two_editors"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == run_above | {"test_my_agents", "test_support_agent"}
    assert {path.stem for path in EXAMPLES.glob("*/*.py")} == {"model", "team", "test_team", "web"}


def test_readme_shows_the_example() -> None:
    """The ten lines of the README and of the quickstart are those of the example."""
    example = (EXAMPLES / "my_agents.py").read_text(encoding="utf-8").split("\n\n", 1)[1]
    assert len(example.splitlines()) == 10
    for page in ("README.md", "docs/tutorial/quickstart.md"):
        assert f"```python\n{example}```\n" in (EXAMPLES.parent / page).read_text(encoding="utf-8")
