"""`orc completion`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.parsing import Commands, positional

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

commands = Commands(
    "completion",
    "orc completion bash > ~/.local/share/bash-completion/completions/orc",
    'orc completion zsh > "${fpath[1]}/_orc"',
    "orc completion fish > ~/.config/fish/completions/orc.fish",
    "source <(orc completion bash)",
)


@commands.itself
def completion(shell: Annotated[Shell, positional("bash|zsh|fish", help="The shell.")], /) -> None:
    """Print a shell completion script for commands, options and their values."""
    from orchestrator.cli.app import program
    from orchestrator.cli.terminal.shell_scripts import completion_script

    output.write(completion_script(program(), shell))
