"""The options that every command takes, and the settings they lead to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from orchestrator.cli.terminal.parsing import global_options, option

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import LoadedSettings, Settings
    from orchestrator.services import Services

Form: TypeAlias = Literal["table", "json", "jsonl", "id"]


@global_options
@dataclass(frozen=True, slots=True)
class Globals:
    """What may be said with every command."""

    output: Annotated[Form, option("--output", "-o", metavar="FORM")] = "table"
    """table for people; json, jsonl for programs; id for pipes."""

    config: Annotated[Path | None, option("--config", metavar="FILE")] = None
    """Settings file [ORC_CONFIG]."""

    url: Annotated[str | None, option("--url", metavar="URL")] = None
    """Redis to use [ORC_REDIS__URL]. A password belongs in the variable: options are seen by everybody."""

    prefix: Annotated[str | None, option("--prefix", metavar="APP:ENV:TENANT")] = None
    """First part of every key [ORC_PREFIX]."""

    pool: Annotated[str | None, option("--pool", metavar="POOL")] = None
    """Dispatch domain [ORC_POOL]."""

    data_dir: Annotated[Path | None, option("--data-dir", metavar="DIR")] = None
    """Data directory of the embedded Redis [ORC_DATA_DIR]."""

    debug: Annotated[bool, option("--debug")] = False
    """Log everything; show where an error came from."""

    def settings(self, **overrides: object) -> Settings:
        """Read the settings, with these options put over them.

        Args:
            overrides: further options; `__` stands for the dot (`worker__processes=2`).

        Raises:
            ConfigError: a setting is wrong or unknown.
        """
        return self.loaded(**overrides).settings

    def loaded(self, **overrides: object) -> LoadedSettings:
        """Read the settings and keep where each came from."""
        from orchestrator.core.settings import load_with_places

        self.name_data_dir()
        given: dict[str, Any] = {"redis.url": self.url, "prefix": self.prefix, "pool": self.pool}
        given |= {name.replace("__", "."): value for name, value in overrides.items()}
        if self.debug:
            from orchestrator.core.log import configure_logging

            given["logging.level"] = "debug"
            configure_logging("debug")
        return load_with_places(self.config, given)

    def services(self) -> AbstractAsyncContextManager[Services]:
        """Open the pool that these options name."""
        from orchestrator.services import open_services

        return open_services(self.settings(), name="cli")

    def client(self) -> Orchestrator:
        """Return a client of the pool that these options name; it opens as a context manager."""
        from orchestrator.client.client import Orchestrator

        return Orchestrator(settings=self.settings())

    def name_data_dir(self) -> None:
        """Let everything in this process and below look for the embedded server where `--data-dir` says."""
        if self.data_dir is not None:
            os.environ["ORC_DATA_DIR"] = str(self.data_dir.expanduser().absolute())

    def environ(self) -> dict[str, str]:
        """The environment for a process of ours that must see the same settings."""
        self.name_data_dir()
        given = {"ORC_CONFIG": self.config and str(self.config.absolute()), "ORC_REDIS__URL": self.url}
        given |= {"ORC_PREFIX": self.prefix, "ORC_POOL": self.pool}
        given["ORC_LOGGING__LEVEL"] = "debug" if self.debug else None
        return {**os.environ, **{name: value for name, value in given.items() if value}}


DEFAULTS = Globals()
