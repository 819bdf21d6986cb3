"""Options of a task, for `orc tasks submit` and `orc schedules add`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from orchestrator.cli.terminal import inputs
from orchestrator.cli.terminal.parsing import option, option_group


@option_group("Options of the task")
@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Arguments and options of a task."""

    arg: Annotated[tuple[str, ...], option("--arg", "-a", metavar="NAME=VALUE", many=True)] = ()
    """One argument; VALUE is JSON when it parses, otherwise text. Overrides the body."""

    agent: Annotated[str | None, option("--agent", metavar="AGENT")] = None
    """Agent that must run it; by default any agent with the skill."""

    session: Annotated[str | None, option("--session", metavar="SESSION")] = None
    """Session that it belongs to."""

    lane: Annotated[str | None, option("--lane", metavar="LANE")] = None
    """Tasks of one lane run one after another, in the order of submission."""

    priority: Annotated[str, option("--priority", metavar="LEVEL")] = "normal"
    """critical, high, normal, low, or 0 to 9 (lower first)."""

    tag: Annotated[tuple[str, ...], option("--tag", metavar="TAG", many=True)] = ()
    """Tag; may be repeated."""

    attempt_timeout: Annotated[str | None, option("--attempt-timeout", metavar="DURATION")] = None
    """Time limit of one attempt."""

    max_attempts: Annotated[int | None, option("--max-attempts", metavar="N")] = None
    """Failed attempts until it is a dead letter."""

    result_ttl: Annotated[str | None, option("--result-ttl", metavar="DURATION")] = None
    """How long it is kept after its end."""

    def values(self) -> dict[str, Any]:
        """Return the options as arguments of `submit`, without the arguments of the task.

        Raises:
            InvalidInput: a duration is invalid.
        """
        return {
            "agent": self.agent,
            "session": self.session,
            "lane": self.lane,
            "priority": inputs.priority(self.priority),
            "tags": self.tag,
            "timeout": inputs.duration_s("--attempt-timeout", self.attempt_timeout),
            "max_attempts": self.max_attempts,
            "result_ttl": inputs.duration_s("--result-ttl", self.result_ttl),
        }


DEFAULT_TASK: TaskOptions = TaskOptions()
