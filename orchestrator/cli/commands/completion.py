"""`orc completion`: prints what a shell must read to complete commands, options and their values."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.parsing import Commands, positional

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

commands = Commands(
    "completion",
    "Print what a shell must read to complete commands.",
    "orc completion bash > ~/.local/share/bash-completion/completions/orc",
    'orc completion zsh > "${fpath[1]}/_orc"',
    "orc completion fish > ~/.config/fish/completions/orc.fish",
    "source <(orc completion bash)",
)
app = commands.app


@commands.itself
def completion(shell: Annotated[Shell, positional("bash|zsh|fish")], /) -> None:
    """Print what a shell must read to complete commands, options and their values.

    Args:
        shell: Which shell.
    """
    from orchestrator.cli.app import program

    output.write(program().completion(shell))
