"""Arguments are parsed by the signature of the command; what cannot be meant is refused with the nearest name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput
from tests.helpers.cases import each_case

commands = Commands("orc")


@commands.command("copy")
def copy(
    source: Annotated[str, positional("SOURCE")],
    target: Annotated[str | None, positional("TARGET")] = None,
    /,
    *more: Annotated[str, positional("MORE")],
    count: Annotated[int | None, option("--count", "-n", metavar="N")] = None,
    share: Annotated[float, option("--share", metavar="NUMBER")] = 1.0,
    mode: Annotated[Literal["fast", "safe"], option("--mode")] = "fast",
    name: Annotated[tuple[str, ...], option("--name", metavar="NAME", many=True)] = (),
    force: Annotated[bool, option("--force", "-f")] = False,
    common: Globals = DEFAULTS,
) -> dict[str, Any]:
    """Copy."""
    return {
        "words": (source, target, *more), "count": count, "share": share, "mode": mode, "name": name, "force": force,
        "output": common.output,
    }  # fmt: skip


USUAL: dict[str, Any] = {
    "words": ("a", None), "count": None, "share": 1.0, "mode": "fast", "name": (), "force": False, "output": "table",
}  # fmt: skip


@each_case(
    ("typed", "meant"),
    [
        ("copy a", {}),
        ("copy a b c d", {"words": ("a", "b", "c", "d")}),
        ("copy -n3 a --share=0.5", {"count": 3, "share": 0.5}),
        ("copy -fn 3 a", {"count": 3, "force": True}),
        ("copy a --name x --name=y=z", {"name": ("x", "y=z")}),
        ("copy --force -- -x --force", {"force": True, "words": ("-x", "--force")}),
        ("copy -", {"words": ("@-", None)}),
        ("copy -5 -.5", {"words": ("-5", "-.5")}),
        ("-o json copy a", {"output": "json"}),
        ("copy a --name -x", {"name": ("-x",)}),
    ],
)
def test_arguments(typed: str, meant: dict[str, Any]) -> None:
    """Options stand anywhere and in every usual form."""
    assert commands.run(typed.split()) == USUAL | meant


@each_case(
    ("typed", "said"),
    [
        ("copi a", "unknown command 'copi'; did you mean `orc copy`?"),
        ("foo", "unknown command 'foo'; `orc --help` lists the commands"),
        ("--nope", "unknown option --nope; `orc --help` lists the options"),
        ("copy a --nope", "unknown option --nope; `orc copy --help` lists the options"),
        ("copy a --forse", "unknown option --forse; did you mean --force?"),
        ("copy a --out json", "unknown option --out; did you mean --output?"),
        ("copy", "SOURCE is missing; usage: orc copy SOURCE [TARGET] [MORE...] [OPTIONS]"),
        ("copy a --count", "--count needs a value: --count N"),
        ("copy a --name --force", "--name needs a value: --name NAME"),
        ("copy a -n x", "--count 'x' is not a whole number"),
        ("copy a --share x", "--share 'x' is not a number"),
        ("copy a --mode fats", "--mode 'fats' is not known; did you mean fast?"),
        ("copy a --mode x", "--mode 'x' is not known; it is one of fast, safe"),
        ("copy a -n 1 -n 2", "-n is given twice; give it once"),
        ("copy a --force=yes", "--force takes no value"),
    ],
)
def test_refusals(typed: str, said: str) -> None:
    """A refusal says what is wrong, and names only what was probably meant."""
    with pytest.raises(InvalidInput) as refused:
        commands.run(typed.split())
    assert str(refused.value) == said


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_is_wrapped_once(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line of the help is wider than the terminal, examples apart; its usage names the options as they are."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["tasks", "submit", "--help"]) == 0
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).startswith("Usage: orc tasks submit SKILL [JSON|@FILE|-] [OPTIONS] Submit a task")
    assert max(map(len, shown.partition("Examples:")[0].splitlines())) <= columns
    assert "--priority LEVEL" in shown
