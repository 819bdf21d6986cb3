"""Checks submissions against the skills that workers have registered: the names of their arguments, and of themselves.

A task whose arguments fit no version would become a dead letter. The check compares names only, because the validators
of handlers may accept values of any type, and it accepts what an old copy of the registry accepts: workers decide.

A task of a skill that no live agent has waits, perhaps without end: the caller is warned, once per skill and process.
The registry is read for this when its copy is read anyway, so a usual submit costs nothing more.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.agents import queries as registry
from orchestrator.agents.presence import find_absence, require_presence, warn_of_absence
from orchestrator.core.errors import InvalidInput, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from orchestrator.agents.model import KnownVersion
    from orchestrator.services import Services
    from orchestrator.tasks.submission import NamedArguments, Submission

FRESH_S: Final = 60.0
"""How long the versions of a skill are used without reading them again."""
ANSWER_S: Final = 1.0
"""How long a submit waits for the versions at most."""
RETRY_S: Final = 1.0
"""How long nothing is checked after the versions could not be read."""
SHAPES_MAX: Final = 1000
KNOWN_MAX: Final = 1000
"""Number of skills whose versions are kept."""
WARNED_MAX: Final = 1000
"""Number of skills and agents that a process is warned of."""
_warned: Final = set[tuple[str, str, str | None]]()
"""Root of the pool, skill and agent that this process was warned of."""


@dataclass(slots=True)
class _Known:
    """A copy of the registry.

    Attributes:
        accepted: names of arguments in their order that fit, so that they are compared once.
        looked_for: agents of tasks, None for any, for which it is known whether a live worker takes them.
    """

    until_s: float
    versions: Sequence[KnownVersion]
    accepted: set[tuple[str, ...]] = field(default_factory=set)
    looked_for: set[str | None] = field(default_factory=set)


class SkillVersions:
    """The versions of skills that this client knows.

    Args:
        services: of the client.
        warn: tells the caller that no live agent takes a task.
    """

    def __init__(self, services: Services, warn: Callable[[str], None] = warn_of_absence) -> None:
        self._services, self._warn = services, warn
        self._known: dict[str, _Known] = {}
        self._unchecked_until_s = 0.0
        self._reading = anyio.Lock()

    def accepts(self, skill: str, names: Collection[str], agent: str | None) -> bool:
        """Return whether the last copy of the registry is fresh and accepts arguments with these names."""
        known, now_s = self._known.get(skill), time.monotonic()
        if known is not None and now_s < known.until_s:
            shape = (*names,) if agent is None else (agent, "", *names)
            if shape in known.accepted:
                return True
            if agent in known.looked_for and _fits(known.versions, names, agent):
                if len(known.accepted) < SHAPES_MAX:
                    known.accepted.add(shape)
                return True
        return now_s < self._unchecked_until_s

    async def check(self, given: NamedArguments) -> None:
        """Check the names of arguments; read the registry again unless the last copy accepts them.

        Raises:
            InvalidInput: no version takes them.
        """
        skill, names, agent, key = given
        if self.accepts(skill, names, agent):
            return
        async with self._reading:
            if self.accepts(skill, names, agent):
                return
            known = self._known.get(skill)
            if known is not None and time.monotonic() < known.until_s and _fits(known.versions, names, agent):
                # A new copy, with the versions of all agents, would tell no more.
                known.looked_for.add(agent)
                await self._look_for(skill, agent)
                return
            await self._read(skill, agent)
        if not self.accepts(skill, names, agent) and not (key and await self._is_known(key)):
            raise InvalidInput(_misfit(skill, self._known[skill].versions, names, agent))

    async def require(self, task: Submission) -> None:
        """Read whether a live agent takes a task.

        Raises:
            NoAgent: none does.
            StoreError: Redis does not answer, or refuses.
        """
        skill, agent = _subject(task)
        store, retry_for_s = self._services.store, self._services.settings.redis.command_timeout_s
        await store.read_with_retry(lambda: require_presence(store, skill, agent), retry_for_s=retry_for_s)

    async def require_all(self, tasks: Iterable[Submission]) -> None:
        """Read whether live agents take those of these tasks that ask for it; errors as of `require`."""
        found = set[tuple[str, str | None]]()
        for task in tasks:
            if task.options and task.options.get("require_agent") and _subject(task) not in found:
                await self.require(task)
                found.add(_subject(task))

    async def _read(self, skill: str, agent: str | None) -> None:
        found: list[KnownVersion] | None = None
        with anyio.move_on_after(ANSWER_S), contextlib.suppress(StoreError):  # the submit reports the failure
            found = usable(await registry.versions(self._services.store, skill))
        if found is None:
            self._unchecked_until_s = time.monotonic() + RETRY_S
            return
        if skill not in self._known and len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        known, now_s = self._known.get(skill), time.monotonic()
        looked_for = {agent, *(version.agent for version in found if version.live)}
        if known is not None and now_s < known.until_s:
            looked_for |= known.looked_for
        self._known[skill] = _Known(now_s + FRESH_S, found, looked_for=looked_for)
        await self._look_for(skill, agent)

    async def _look_for(self, skill: str, agent: str | None) -> None:
        """Warn the caller, once, if no live agent takes the task."""
        subject, absence = (self._services.keys.root, skill, agent), None
        if subject in _warned or len(_warned) >= WARNED_MAX:
            return
        with anyio.move_on_after(ANSWER_S), contextlib.suppress(StoreError):
            absence = await find_absence(self._services.store, skill, agent)
        if absence is not None:
            _warned.add(subject)
            self._warn(absence)

    async def _is_known(self, key: str) -> bool:
        """Return whether a task has this idempotency key, so that the submit is a repeat, which the server judges."""
        return bool(await self._services.store.execute("EXISTS", self._services.keys.idempotency(key)))


def _subject(task: Submission) -> tuple[str, str | None]:
    return task.skill_name, task.options.get("agent")


def usable(versions: Iterable[KnownVersion]) -> list[KnownVersion]:
    """Return the versions whose workers tasks may wait for: per agent the live ones, and newer ones that left."""
    listed = list(versions)
    newest = dict[str, int]()
    for version in listed:
        if version.live:
            newest[version.agent] = max(version.born_ms, newest.get(version.agent, 0))
    return [version for version in listed if version.live or version.born_ms > newest.get(version.agent, 0)]


def _fits(versions: Sequence[KnownVersion], names: Collection[str], agent: str | None) -> bool:
    if agent is not None:
        versions = [version for version in versions if version.agent == agent]
    for version in versions:
        if version.takes(names):
            return True
    return not versions


def _misfit(skill: str, versions: Sequence[KnownVersion], names: Collection[str], agent: str | None) -> str:
    newest = max((one for one in versions if agent in {None, one.agent}), key=lambda one: one.born_ms)
    wrong = [f"{name}: not an argument" for name in sorted(set(names) - newest.names)]
    wrong += [f"{name}: missing" for name in sorted(newest.required - set(names))]
    return (
        f"arguments fit no version of {skill!r} that workers have ({'; '.join(wrong)}); correct them or upgrade workers"
    )
