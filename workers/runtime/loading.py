"""Imports agents by `module:attribute`.

The current directory comes last on the path, so that no file there shadows a package of redis-orchestrator.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError
from orchestrator.workers.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence


def load_agents(targets: Sequence[str]) -> list[Agent]:
    """Import each `module:attribute`; the attribute is an `Agent` or a list of them.

    Raises:
        ConfigError: a target does not exist or is not an agent, an agent is named twice, or an agent has no skills.
    """
    _search_current_directory_last()
    agents = [agent for target in targets for agent in _load(target)]
    names = [agent.name for agent in agents]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"agent {name!r} is named twice; one worker hosts each agent once")
    for agent in agents:
        if not agent.skills:
            raise ConfigError(f"agent {agent.name!r} has no skills; decorate at least one handler with @agent.skill")
    return agents


def _load(target: str) -> list[Agent]:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{target!r} does not name an agent; write MODULE:AGENT, for example my_agents:agent")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name and (module_name == missing.name or module_name.startswith(f"{missing.name}.")):
            raise ConfigError(f"no module {module_name!r} on the path or in {Path.cwd()}") from None
        raise ConfigError(f"{module_name} cannot be imported: {missing}") from missing
    except (Exception, SystemExit) as broken:
        raise ConfigError(f"{module_name} cannot be imported: {type(broken).__name__}: {broken}") from broken
    found = getattr(module, attribute, None)
    if found is None:
        known = [name for name, value in vars(module).items() if isinstance(value, Agent)]
        raise ConfigError(
            f"{module.__file__ or module_name} has no {attribute!r}; "
            + (f"it has {', '.join(known)}" if known else "it has no agent")
        )
    agents = [found] if isinstance(found, Agent) else list(found) if isinstance(found, list | tuple) else []
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise ConfigError(f"{target} is neither an Agent nor a list of agents, but a {type(found).__name__}")
    return agents


def _search_current_directory_last() -> None:
    here = str(Path.cwd())
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != os.path.realpath(here)] + [here]
    ours = os.path.realpath(str(sys.modules["orchestrator"].__file__))
    for shadow in (Path(here, "orchestrator.py"), Path(here, "orchestrator", "__init__.py")):
        if shadow.exists() and os.path.realpath(shadow) != ours:
            sys.stderr.write(f"warning: {shadow} has the name of our package and is not used; rename it\n")
