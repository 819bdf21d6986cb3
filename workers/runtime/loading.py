"""Imports agents by `module:attribute`.

The current directory comes last on the path, so that no file there shadows a package of redis-orchestrator.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError
from orchestrator.workers.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS: Final = "orchestrator"
FRAMES: Final = 10
"""Innermost frames that an error shows."""


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
            raise ConfigError(
                f"no module {module_name!r} on the path or in {Path.cwd()}{_shadow_note(missing)}"
            ) from None
        raise ConfigError(f"{module_name} cannot be imported: {_told(missing)}") from missing
    except (Exception, SystemExit) as broken:
        raise ConfigError(f"{module_name} cannot be imported: {_told(broken)}") from broken
    found = getattr(module, attribute, None)
    if found is None:
        known = [name for name, value in vars(module).items() if isinstance(value, Agent)]
        raise ConfigError(
            f"{module.__file__ or module_name} has no {attribute!r}; "
            + (f"it has {', '.join(known)}" if known else "it has no agent")
            + (_shadow_note(None) if module_name == OURS else _unused_note(module_name, module.__file__))
        )
    agents = [found] if isinstance(found, Agent) else list(found) if isinstance(found, list | tuple) else []
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise ConfigError(
            f"{target} is neither an Agent nor a list of agents, but a {type(found).__name__}"
            f"{_unused_note(module_name, module.__file__)}"
        )
    return agents


def _unused_note(module: str, loaded: str | None) -> str:
    """Name the module here that is not used, because an installed one with its name comes first on the path."""
    stem = Path.cwd().joinpath(*module.split("."))
    for mine in (stem.with_suffix(".py"), stem / "__init__.py"):
        if mine.exists() and (loaded is None or mine.resolve() != Path(loaded).resolve()):
            return f" ({mine} is not used, because {loaded or 'another module'} has its name; rename it)"
    return ""


def _told(broken: BaseException) -> str:
    """Return an exception of an import with the user's own frames: file, line and code, the innermost last."""
    name = "" if isinstance(broken, ModuleNotFoundError) else f"{type(broken).__name__}: "
    if isinstance(broken, SyntaxError):
        # Its text has the place and a mark below the code.
        *where, what = traceback.format_exception_only(broken)
        return f"{what.rstrip()}{_shadow_note(broken)}\n{''.join(where).rstrip()}"
    frames = [frame for frame in traceback.extract_tb(broken.__traceback__) if _is_users(frame.filename)]
    shown = "".join(traceback.format_list(frames[-FRAMES:])).rstrip()
    return f"{name}{broken}{_shadow_note(broken)}" + (f"\n{shown}" if shown else "")


def _is_users(file: str) -> bool:
    """Return whether a file is neither ours nor of the library of Python nor of an installed package."""
    path, ours = Path(file).resolve(), _our_file().parent
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = [ours, Path(__file__).resolve().parents[1], *installed]
    return not file.startswith("<") and not any(path.is_relative_to(folder) for folder in others)


def _our_file() -> Path:
    return Path(str(sys.modules[OURS].__file__)).resolve()


def _shadow_note(broken: BaseException | None) -> str:
    """Name the user's module with the name of our package, if a failed import may have meant that."""
    if broken is not None and not (isinstance(broken, ImportError) and (broken.name or "").split(".")[0] == OURS):
        return ""
    shadows = _shadows(folders=True)
    return f" ({shadows[0]} has the name of our package and is not used; rename it)" if shadows else ""


def _shadows(*, folders: bool = False) -> list[Path]:
    """Return the modules on the path that have the name of our package; with `folders` also plain folders."""
    names = (f"{OURS}.py", f"{OURS}/__init__.py", *([OURS] if folders else []))
    ours = _our_file()
    found = [Path(folder, name) for folder in sys.path for name in names if Path(folder, name).exists()]
    return [path for path in found if path.resolve() not in {ours, ours.parent}]


def _search_current_directory_last() -> None:
    here = str(Path.cwd())
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != os.path.realpath(here)] + [here]
    for shadow in _shadows()[:1]:
        sys.stderr.write(f"warning: {shadow} has the name of our package and is not used; rename it\n")
