"""Options that every command takes, and arguments that several commands take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from orchestrator.cli.terminal.arguments import global_options, option, positional
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import LoadedSettings, SettingsSources
    from orchestrator.services import Services

Form: TypeAlias = Literal["table", "json", "jsonl", "id"]


TaskId: TypeAlias = Annotated[str, positional("ID", help="Id of the task, or the beginning of it.")]
DryRun: TypeAlias = Annotated[bool, option("--dry-run", help="Print the ids that match and change nothing.")]
Yes: TypeAlias = Annotated[bool, option("--yes", help="Do not ask for confirmation.")]
Reason: TypeAlias = Annotated[str, option("--reason", metavar="TEXT", help="Reason; kept with the command.")]


@global_options
@dataclass(frozen=True, slots=True)
class Globals:
    """Options that every command takes."""

    output: Annotated[Form, option("--output", "-o", metavar="FORM")] = "table"
    """table for people; json, jsonl for programs; id for pipes."""

    config: Annotated[Path | None, option("--config", metavar="FILE")] = None
    """Settings file [ORC_CONFIG]."""

    url: Annotated[str | None, option("--url", metavar="URL")] = field(default=None, repr=False)
    """Redis server [ORC_REDIS__URL]. Put a password into the variable: every user of the machine can read options."""

    prefix: Annotated[str | None, option("--prefix", metavar="APP:ENV:TENANT")] = None
    """First part of every key [ORC_PREFIX]."""

    pools: Annotated[tuple[str, ...], option("--pool", metavar="POOL", many=True)] = ()
    """Dispatch domain [ORC_POOL]. `up`, `supervisor run` and `worker run` take several."""

    data_dir: Annotated[Path | None, option("--data-dir", metavar="DIR")] = None
    """Data directory of the embedded Redis [ORC_DATA_DIR]."""

    debug: Annotated[bool, option("--debug")] = False
    """Log at level debug; show the traceback of an error."""

    @property
    def pool(self) -> str | None:
        """The pool that the options name, if any.

        Raises:
            InvalidInput: they name several.
        """
        if len(self.pools) > 1:
            raise InvalidInput(
                "this command takes one --pool; only `orc up`, `orc supervisor run` and `orc worker run` take "
                "several pools"
            )
        return self.pools[0] if self.pools else None

    def split_pools(self) -> tuple[tuple[str, ...], Globals]:
        """Return the pools that a program serves, and these options with the first of them alone.

        Raises:
            InvalidInput: a name is invalid.
        """
        pools = tuple(dict.fromkeys(check_name("pool", pool) for pool in self.pools))
        return pools, replace(self, pools=pools[:1])

    def settings(self, **overrides: object) -> Settings:
        """Read the settings; these options override them.

        Args:
            overrides: more options, with `__` for the dot (`worker__processes=2`).

        Raises:
            ConfigError: a setting is invalid or unknown.
        """
        return self.loaded(**overrides).settings

    def loaded(self, **overrides: object) -> LoadedSettings:
        """Read the settings with the source of each."""
        from orchestrator.core.scrubbing import learn_secrets

        loaded = self._load_plain(overrides) or self.sources(**overrides).load()
        learn_secrets(loaded.settings.secrets)
        if self.debug:
            from orchestrator.core.log import configure_logging

            configure_logging("debug", secrets=loaded.settings.secrets)
        return loaded

    def sources(self, **overrides: object) -> SettingsSources:
        """Return the sources of the settings, for a program that reads them again."""
        from orchestrator.core.settings_sources import SettingsSources

        self.name_data_dir()
        return SettingsSources.of(self.config, self._given(overrides))

    def _given(self, overrides: Mapping[str, object]) -> dict[str, Any]:
        given: dict[str, Any] = {"redis.url": self.url, "prefix": self.prefix, "pool": self.pool}
        given |= {name.replace("__", "."): value for name, value in overrides.items()}
        if self.debug:
            given["logging.level"] = "debug"
        return given

    def _load_plain(self, overrides: Mapping[str, object]) -> LoadedSettings | None:
        """Read settings without their models in a program that ends soon, if they are plain."""
        from orchestrator.cli.imports import is_quick

        if self.config is not None or not is_quick():
            return None
        from orchestrator.core.plain_settings import load_plain
        from orchestrator.core.secret_environment import settings_environ

        self.name_data_dir()
        return load_plain(settings_environ(), self._given(overrides))

    def services(self) -> AbstractAsyncContextManager[Services]:
        """Open the pool that these options name."""
        from orchestrator.services import open_services

        return open_services(self.settings(), name="cli", brief=True)

    def client(self) -> Orchestrator:
        """Return a client of the pool that these options name; it opens as a context manager."""
        from orchestrator.client.command_client import CommandClient

        return CommandClient(settings=self.settings())

    def name_data_dir(self) -> None:
        """Set the data directory of the embedded server for this process and its children."""
        if self.data_dir is not None:
            os.environ["ORC_DATA_DIR"] = str(self.data_dir.expanduser().absolute())

    def environ(self) -> dict[str, str]:
        """Return the environment for a child process that must read the same settings."""
        self.name_data_dir()
        given = {"ORC_CONFIG": self.config and str(self.config.absolute()), "ORC_REDIS__URL": self.url}
        given |= {"ORC_PREFIX": self.prefix, "ORC_POOL": self.pool}
        given["ORC_LOGGING__LEVEL"] = "debug" if self.debug else None
        from orchestrator.core.secret_environment import settings_environ

        return {**settings_environ(), **{name: value for name, value in given.items() if value}}


DEFAULTS = Globals()
