"""Reloads the settings of a running program.

A reload reads all sources again. It applies the settings that are declared as `Live` in one step, keeps the others as
they were at the start, and reports which ones need a restart. An error keeps everything as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from pydantic import BaseModel, SecretStr, ValidationError

from orchestrator.core.errors import ConfigError
from orchestrator.core.log import MASK, get_logger
from orchestrator.core.settings import Settings, leaves

if TYPE_CHECKING:
    from orchestrator.core.live_settings import LiveSettings
    from orchestrator.core.notify import Notifier
    from orchestrator.core.settings import Leaf
    from orchestrator.core.settings_sources import SettingsSources

_log = get_logger(__name__)

Program: TypeAlias = Literal["supervisor", "worker"]

# A supervisor judges the silence of workers by `worker.heartbeat_s`.
_UNUSED: Final[Mapping[Program, tuple[str, ...]]] = {
    "supervisor": ("worker.processes", "worker.stuck_after_s", "worker.health"),
    "worker": ("supervisor.",),
}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting with two values; those of a secret are masked.

    Attributes:
        name: dotted; an entry of an open table has its own name, as in `limits.model:large`.
        old: None if it is not set.
        new: as `old`.
        live: a reload applies it.
    """

    name: str
    old: object
    new: object
    live: bool
    secret: bool

    def __str__(self) -> str:
        if self.secret:
            return f"{self.name} changed"
        return f"{self.name} = {_text(self.new)} (was {_text(self.old)})"


class SettingsReloader:
    """Reloads the settings of one process from the sources of its start.

    Args:
        sources: of the start.
        live: the settings of the process.
        notifier: tells the service manager of the reload.
        program: what the process is; settings that only another program uses are not reported.
        group: the worker group that the process runs, if any.
    """

    def __init__(
        self,
        sources: SettingsSources,
        live: LiveSettings,
        notifier: Notifier,
        *,
        program: Program,
        group: str | None = None,
    ) -> None:
        self._sources, self._live, self._notifier = sources, live, notifier
        self._program, self._group = program, group

    def reload(self) -> bool:
        """Read the sources again, apply what may change, and log it.

        Returns:
            False if the new settings are invalid and the old ones stay.
        """
        self._notifier.reloading()
        try:
            return self._reload()
        finally:
            self._notifier.reloaded()

    def _reload(self) -> bool:
        current, generation = self._live.current, self._live.generation
        try:
            read = self._sources.load_again()
            check_removals(current, read)
            merged = merge_live(current, read)
            applied = changes(current, merged)
        except ConfigError as refused:
            _log.error("settings_reload_refused", generation=generation, problems=str(refused).splitlines())
            return False
        except Exception as unexpected:  # noqa: BLE001 - a fault of a reload must not end a program that works
            # Without its text, which may have a value of a setting.
            problems = [f"unexpected {type(unexpected).__name__}"]
            _log.error("settings_reload_refused", generation=generation, problems=problems)
            return False
        waiting = [one.name for one in changes(current, read) if not one.live and self._uses(one.name)]
        if applied:
            self._live.replace(merged, generation=generation + 1)
        _log.info(
            "settings_reloaded",
            generation=self._live.generation,
            changed=[str(change) for change in applied],
            needs_restart=waiting,
        )
        return True

    def _uses(self, name: str) -> bool:
        """Return whether the process uses a setting that needs a restart."""
        section, _, entry = name.partition(".")
        if section == "workers":
            return entry == self._group
        return not name.startswith(_UNUSED[self._program])


def changes(old: Settings, new: Settings) -> list[SettingChange]:
    """List the settings that differ, in the order of the model."""
    found: list[SettingChange] = []
    for leaf in leaves():
        before, after = leaf.of(old), leaf.of(new)
        if before != after:
            found += _table_changes(leaf, before, after) if leaf.open else [_change(leaf, leaf.name, before, after)]
    return found


def _table_changes(leaf: Leaf, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[SettingChange]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [_change(leaf, f"{leaf.name}.{name}", old.get(name), new.get(name)) for name in names]


def _change(leaf: Leaf, name: str, old: Any, new: Any) -> SettingChange:
    before, after = (_plain(value, mask=leaf.secret) for value in (old, new))
    return SettingChange(name, before, after, live=leaf.live, secret=leaf.secret)


def merge_live(old: Settings, new: Settings) -> Settings:
    """Return the old settings with the live ones of the new.

    Raises:
        ConfigError: the two do not fit together.
    """
    tree: dict[str, Any] = {}
    for leaf in leaves():
        _put(tree, leaf, leaf.of(new if leaf.live else old))
    try:
        return Settings(**tree)
    except ValidationError as invalid:
        reasons = {error["msg"].removeprefix("Value error, ") for error in invalid.errors(include_input=False)}
        raise ConfigError(f"needs a restart: {'; '.join(sorted(reasons))}") from None


def check_removals(old: Settings, new: Settings) -> None:
    """Refuse to take away the secret that signs commands.

    A file of secrets that is replaced in two steps would else make the program obey unsigned commands.

    Raises:
        ConfigError: it is gone.
    """
    if old.control.secret is not None and new.control.secret is None:
        raise ConfigError("control.secret is gone, which needs a restart; a running program keeps checking signatures")


def settings_digest(settings: Settings) -> str:
    """Return a name of the values of all live settings, without secrets; equal settings have equal names."""
    values = [(leaf.name, _plain(leaf.of(settings), mask=True)) for leaf in leaves() if leaf.live and not leaf.secret]
    return sha256(msgspec.json.encode(values, order="deterministic")).hexdigest()[:8]


def pack_settings(settings: Settings) -> bytes:
    """Encode all settings with their secrets, for a child process."""
    tree: dict[str, Any] = {}
    for leaf in leaves():
        _put(tree, leaf, _plain(leaf.of(settings), mask=False))
    return msgspec.json.encode(tree)


def unpack_settings(packed: bytes) -> Settings:
    """Decode the settings of `pack_settings`."""
    return Settings(**msgspec.json.decode(packed))


def _put(tree: dict[str, Any], leaf: Leaf, value: Any) -> None:
    node = tree
    for part in leaf.path[:-1]:
        node = node.setdefault(part, {})
    node[leaf.path[-1]] = value


def _plain(value: Any, *, mask: bool) -> Any:
    """Return a value that JSON can represent."""
    if isinstance(value, SecretStr):
        return MASK if mask else value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _plain(entry, mask=mask) for name, entry in value.items()}
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _text(value: object) -> str:
    return "not set" if value is None else str(value)
