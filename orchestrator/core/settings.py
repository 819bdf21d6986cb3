"""Loads the settings into one frozen tree. Importing this module reads nothing.

Sources, the later ones win: defaults, one TOML file, a directory of secret files, the environment, options. An unknown
name is an error everywhere, with its place and the nearest valid name, so that a misspelt setting is not ignored.
Messages never show the value of a secret.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from orchestrator.core.errors import ConfigError, InvalidInput
from orchestrator.core.health_address import parse_health_address
from orchestrator.core.ids import check_name
from orchestrator.core.rates import parse_rate

ENV_PREFIX: Final = "ORC_"
RESERVED_VARIABLES: Final = frozenset({"ORC_CONFIG", "ORC_DATA_DIR"})
SYSTEM_FILE: Final = Path("/etc/orchestrator/orchestrator.toml")
SYSTEM_SECRETS: Final = Path("/run/secrets")

_DAY_S: Final = 86_400

# ------------------------------------------------------------------------------------------------- checks of one value


def _check_url(url: SecretStr) -> SecretStr:
    scheme, separator, rest = url.get_secret_value().partition("://")
    if scheme in {"redis+sentinel", "redis+cluster"}:
        raise ValueError(f"{scheme}:// is not supported yet; give the address of one server as redis://host:port/0")
    if scheme not in {"redis", "rediss", "unix"} or not separator or not rest:
        raise ValueError("must be redis://host:port/db, rediss://… or unix:///path/to/socket")
    return url


def _check_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < 16:
        raise ValueError("must have at least 16 characters; `openssl rand -hex 32` makes a good one")
    return secret


def _check_prefix(prefix: str) -> str:
    parts = prefix.split(":")
    safe = all(part and part.isascii() and part.replace("-", "").replace("_", "").isalnum() for part in parts)
    if len(parts) != 3 or not safe or len(prefix) > 128:
        raise ValueError("must be three parts app:env:tenant of letters, digits, - and _, such as shop:prod:acme")
    return prefix


def _check_pool(pool: str) -> str:
    try:
        return check_name("pool", pool)
    except InvalidInput:  # its message shows the value, which might be a URL in the wrong place
        raise ValueError("must be 1 to 128 letters, digits or . _ @ : - and begin with a letter or digit") from None


def _check_limits(limits: Mapping[str, str]) -> Mapping[str, str]:
    for name, rate in limits.items():
        check_name("limit", name)
        try:
            parse_rate(rate)
        except InvalidInput as refused:
            raise ValueError(f"limit {name!r}: {refused}") from None
    return limits


def _check_health(address: str) -> str:
    parse_health_address(address)
    return address


Seconds: TypeAlias = Annotated[float, Field(gt=0, le=100 * 365 * _DAY_S, allow_inf_nan=False)]
Retention: TypeAlias = Annotated[float, Field(ge=1, le=100 * 365 * _DAY_S, allow_inf_nan=False)]
"""Redis keeps keys for whole seconds; 0 would delete them at once."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31)]
Size: TypeAlias = Annotated[int, Field(ge=1, le=512 * 1024 * 1024)]  # Redis holds no longer strings

Health: TypeAlias = Annotated[
    str, BeforeValidator(lambda given: str(given) if type(given) is int else given), AfterValidator(_check_health)
]
"""Address of a health server; a TOML file may have a bare port as a number."""

# ------------------------------------------------------------------------------------------------------------ the tree


class _Section(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )


class RedisSettings(_Section):
    """Connection to the server."""

    url: Annotated[SecretStr, AfterValidator(_check_url)] | None = Field(
        default=None,
        description="Address of the server: redis://, rediss:// or unix://, with user and password if needed. "
        "Without it, a running embedded server is used.",
    )
    connect_timeout_s: Seconds = Field(default=5.0, description="Time-out of a connection attempt, in seconds.")
    command_timeout_s: Seconds = Field(default=5.0, description="Time-out of a command, in seconds.")
    allow_eviction: bool = Field(
        default=False,
        description="Start even if the server may evict keys when memory is short. Evicted keys are lost tasks.",
    )


class QueueSettings(_Section):
    """Limits and order of waiting tasks."""

    aging_s: Seconds | None = Field(
        default=None,
        description="Waiting time that raises a task by one priority level, in seconds. Not set: strict priorities.",
    )
    max_tasks: Count = Field(default=1_000_000, description="Maximum tasks in a queue; more are refused.")
    max_wait_s: Retention = Field(
        default=14 * _DAY_S, description="Seconds after which a task that never started is dropped."
    )
    max_args_bytes: Size = Field(
        default=262_144, description="Maximum size of the arguments of a task, in bytes of JSON."
    )
    max_depth: Annotated[Count, Field(le=512)] = Field(
        default=64, description="Maximum nesting of lists and objects in the arguments."
    )
    max_tags: Annotated[int, Field(ge=0, le=1024)] = Field(default=64, description="Maximum tags of a task.")
    max_child_depth: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=16, description="Maximum depth of child tasks."
    )


class ResultSettings(_Section):
    """Retention of ended tasks."""

    ttl_s: Annotated[Seconds, Field(ge=300)] = Field(
        default=_DAY_S, description="Retention of an ended task and its result, in seconds. At least 300."
    )
    max_bytes: Size = Field(default=1_048_576, description="Maximum size of a result, in bytes of JSON.")
    dead_ttl_s: Retention = Field(default=14 * _DAY_S, description="Retention of a dead letter, in seconds.")
    max_events: Annotated[int, Field(ge=100, le=20_000)] = Field(
        default=10_000,
        description="Ended tasks that `orc events` and `orc tasks list` show at least; older ones are dropped.",
    )


class OutputSettings(_Section):
    """Progress and partial output of tasks."""

    max_chunk_bytes: Annotated[Size, Field(le=1_048_576)] = Field(
        default=65_536, description="Maximum size of a chunk of output, in bytes of JSON."
    )
    max_chunks: Annotated[int, Field(ge=10, le=10_000)] = Field(
        default=1000,
        description="Approximate number of output and progress entries kept per task; the oldest are dropped.",
    )


class WorkspaceSettings(_Section):
    """Limits of the workspace of a session."""

    ttl_s: Annotated[Seconds, Field(ge=60)] = Field(
        default=_DAY_S, description="Retention of a workspace after its last change, in seconds."
    )
    life_s: Annotated[Seconds, Field(ge=60)] = Field(
        default=7 * _DAY_S, description="Maximum age of a workspace after its first change, in seconds."
    )
    dedup_s: Annotated[Seconds, Field(ge=10, le=_DAY_S)] = Field(
        default=600.0, description="Seconds within which a change that is sent twice is told from a new one, at least."
    )
    max_dedup: Annotated[Count, Field(le=1_000_000)] = Field(
        default=20_000, description="Changes that one window of that memory holds; more in that time shorten it."
    )
    max_value_bytes: Annotated[Size, Field(le=1_048_576)] = Field(
        default=262_144, description="Maximum size of a value, in bytes of JSON."
    )
    max_items: Count = Field(
        default=100_000, description="Maximum number of paths, log entries, members and states in a workspace."
    )
    max_bytes: Annotated[int, Field(ge=1, le=2**40)] = Field(
        default=64 * 1024 * 1024,
        description="Maximum bytes of these; more are refused. Events may take as much again; the oldest are dropped.",
    )
    max_parts: Annotated[int, Field(ge=1, le=500)] = Field(
        default=500, description="Maximum number of logs, sets, scratches and inboxes in a workspace."
    )
    max_log: Annotated[Count, Field(le=1_000_000)] = Field(
        default=10_000, description="Entries kept per log; the oldest are dropped."
    )
    max_events: Annotated[int, Field(ge=10, le=1_000_000)] = Field(
        default=10_000, description="Approximate number of events kept per workspace; the oldest are dropped."
    )
    max_event_bytes: Annotated[Size, Field(le=262_144)] = Field(
        default=8192, description="Size of a value above which its events omit the value, in bytes."
    )
    json_projection: bool = Field(
        default=False,
        description="Also keep the paths as a JSON document; needs the RedisJSON module.",
    )

    @model_validator(mode="after")
    def _ttl_below_life(self) -> Self:
        if self.ttl_s > self.life_s:
            raise ValueError("ttl_s must not be greater than life_s")
        return self


class WorkerSettings(_Section):
    """Worker processes and their heartbeat."""

    processes: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="Worker processes per host.")
    drain_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds that running tasks may go on after SIGTERM before they are requeued."
    )
    grace_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = Field(
        default=10.0,
        description="Seconds that a cancelled handler may take to stop; then its attempt ends without it.",
    )
    stuck_after_s: Seconds = Field(
        default=60.0, description="Seconds that the event loop may be blocked before its process counts as stuck."
    )
    heartbeat_s: Seconds = Field(
        default=5.0,
        description="Seconds between heartbeats; at most a third of an agent's lease.",
    )
    health: Health | None = Field(
        default=None,
        description="Address at which a worker host serves /livez, /readyz and /metrics: host:port, a port of the "
        "loopback address, or unix:/path. Not set: no server.",
    )


class SupervisorSettings(_Section):
    """Loops of the supervisor."""

    sweep_s: Seconds = Field(
        default=5.0, description="Seconds between full passes, which make up for lost notifications."
    )
    leader_lease_s: Seconds = Field(
        default=10.0, description="Seconds after which another supervisor replaces a silent leader."
    )
    batch: Annotated[int, Field(ge=1, le=500)] = Field(default=100, description="Maximum tasks per script call.")
    health: Health | None = Field(
        default=None,
        description="Address at which a supervisor serves /livez, /readyz and /metrics: host:port, a port of the "
        "loopback address, or unix:/path. Not set: no server.",
    )


class RetrySettings(_Section):
    """Default delays between the attempts of a task."""

    base_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = Field(
        default=1.0, description="Maximum of the first delay, in seconds; it doubles with every failure."
    )
    cap_s: Seconds = Field(default=300.0, description="Maximum delay, in seconds.")

    @model_validator(mode="after")
    def _base_below_cap(self) -> Self:
        if self.base_s > self.cap_s:
            raise ValueError("base_s must not be greater than cap_s")
        return self


class ControlSettings(_Section):
    """Operator commands."""

    secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = Field(
        default=None,
        description="Secret that signs commands, at least 16 characters. Without it, every client of Redis may give "
        "commands.",
    )
    previous_secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = Field(
        default=None, description="Previous secret, accepted while `control.secret` is being changed."
    )
    valid_s: Annotated[Seconds, Field(le=_DAY_S)] = Field(
        default=60.0, description="Seconds after which a command that has not arrived is refused."
    )
    per_minute: Count = Field(default=600, description="Commands accepted per minute. A stop is always accepted.")

    @model_validator(mode="after")
    def _previous_needs_present(self) -> Self:
        if self.previous_secret is not None and self.secret is None:
            raise ValueError("previous_secret is accepted beside secret; set that too")
        return self


class LoggingSettings(_Section):
    """Level and format of the log."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level to write: debug, info, warning or error."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="console, json, or auto: console on a terminal, else JSON lines."
    )


class Settings(BaseSettings):
    """All settings. `load_settings` reads them from the usual sources; `Settings()` holds the defaults."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    prefix: Annotated[str, AfterValidator(_check_prefix)] = Field(
        default="orc:dev:default",
        description="First part of every key: app:env:tenant. Different prefixes are isolated from each other.",
    )
    pool: Annotated[str, AfterValidator(_check_pool)] = Field(
        default="default", description="Name of the pool, which has its own queues, agents and limits."
    )
    limits: Annotated[Mapping[str, str], AfterValidator(_check_limits)] = Field(
        default={}, description='Named limits that agents share, as "10/s", "10/min", "10/h" or "10/d".'
    )
    redis: RedisSettings = RedisSettings()
    queue: QueueSettings = QueueSettings()
    results: ResultSettings = ResultSettings()
    output: OutputSettings = OutputSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    worker: WorkerSettings = WorkerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    retry: RetrySettings = RetrySettings()
    control: ControlSettings = ControlSettings()
    logging: LoggingSettings = LoggingSettings()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be printed: the server's password, raw and decoded, and the signing secrets."""
        password = urlsplit(self.redis.url.get_secret_value()).password if self.redis.url else None
        keys = [key.get_secret_value() for key in (self.control.secret, self.control.previous_secret) if key]
        return tuple({password, unquote(password), *keys} if password else keys)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's, here and below
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Accept only passed values; `load_settings` reads files and the environment."""
        return (init_settings,)


# ------------------------------------------------------------------------------------------------------------- loading


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as `orc config show` prints it, secrets masked."""

    name: str
    value: object
    source: str
    description: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the source of each value (dotted name → source; a missing one is the default)."""

    settings: Settings
    places: Mapping[str, str]

    def rows(self) -> list[SettingRow]:
        """List every setting with its value and source, in the order of the model."""
        return [
            SettingRow(leaf.name, _shown(self.settings, leaf), self._source(leaf), leaf.description)
            for leaf in leaves()
        ]

    def _source(self, leaf: Leaf) -> str:
        found = [place for name, place in self.places.items() if name == leaf.name or name.startswith(f"{leaf.name}.")]
        return ", ".join(dict.fromkeys(found)) or "default"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting of the model."""

    path: tuple[str, ...]
    default: object
    description: str
    secret: bool
    open: bool
    """True for a table whose names the user chooses (`limits`)."""

    @property
    def name(self) -> str:
        """The dotted name, as in `redis.url`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable, as in `ORC_REDIS__URL`."""
        return ENV_PREFIX + "__".join(self.path).upper()


@dataclass(frozen=True, slots=True)
class _Value:
    path: tuple[str, ...]
    value: object
    place: str


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of a settings file."""
    schema = Settings.model_json_schema()
    schema["title"] = "Settings"
    return schema


def load_settings(
    config: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings from all sources.

    Args:
        config: the TOML file; by default the one in `ORC_CONFIG`, else the system's file if it exists.
        overrides: options by dotted name (`{"redis.url": …}`); None means that the option is absent.
        environ: environment; by default that of the process.

    Raises:
        ConfigError: an unknown name, an invalid value, or an unreadable file.
    """
    return load_with_places(config, overrides, environ).settings


def load_with_places(
    config: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read the settings as `load_settings` does, with the source of each value."""
    environ = os.environ if environ is None else environ
    merged: dict[tuple[str, ...], _Value] = {}
    for value in _all_values(config, overrides or {}, environ):
        merged[value.path] = value
    try:
        settings = Settings(**_nested(merged))
    except ValidationError as invalid:
        raise ConfigError("\n".join(_explain(invalid, merged))) from None
    return LoadedSettings(settings, {".".join(value.path): value.place for value in merged.values()})


@cache
def leaves() -> tuple[Leaf, ...]:
    """List every setting of the model: top-level ones first, then section by section."""
    return tuple(sorted(_leaves_of(Settings, ()), key=lambda leaf: len(leaf.path)))


def default_toml() -> str:
    """Return the text of `config/default.toml`: every setting with its unit and default."""
    shipped = files("orchestrator.core") / "default.toml"
    # A wheel has the file beside this module, a checkout in its config folder.
    source = shipped if shipped.is_file() else Path(__file__).parents[2] / "config" / "default.toml"
    return source.read_text(encoding="utf-8")


def _all_values(
    config: str | os.PathLike[str] | None, overrides: Mapping[str, object], environ: Mapping[str, str]
) -> Iterator[_Value]:
    """Yield the values of every source, weakest source first."""
    file = config or environ.get("ORC_CONFIG")
    if file:
        yield from _from_file(Path(file))
    elif SYSTEM_FILE.is_file():
        yield from _from_file(SYSTEM_FILE)
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    yield from _from_secrets(Path(credentials) if credentials else SYSTEM_SECRETS)
    ours = {name: text for name, text in environ.items() if name.upper().startswith(ENV_PREFIX)}
    yield from _from_texts({name: text for name, text in ours.items() if name not in RESERVED_VARIABLES}, "environment")
    for name, value in overrides.items():
        if value is not None:
            path = tuple(name.split("."))
            _check_known(path, f"option {name}", lambda leaf: leaf.name)
            yield _Value(path, value, "option")


def _from_file(path: Path) -> Iterator[_Value]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failed:
        raise ConfigError(f"configuration file {path} cannot be read: {failed.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"configuration file {path} is not valid TOML: {wrong}") from None
    for name, value in _flat(tree, ()):
        _check_known(name, f"{'.'.join(name)} in {path}", lambda leaf: leaf.name)
        yield _Value(name, value, f"file {path}")


def _from_secrets(directory: Path) -> Iterator[_Value]:
    """Read the files that are named like a variable; ignore others."""
    try:
        entries = sorted(directory.iterdir()) if directory.is_dir() else []
        texts = {
            entry.name: entry.read_text(encoding="utf-8").strip()
            for entry in entries
            if entry.name.upper().startswith(ENV_PREFIX) and entry.is_file()
        }
    except OSError as failed:
        raise ConfigError(f"secret file {failed.filename or directory} cannot be read: {failed.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"a secret file in {directory} is not UTF-8 text") from None
    return _from_texts(texts, f"secret file {directory}/")


def _from_texts(texts: Mapping[str, str], origin: str) -> Iterator[_Value]:
    """Read text values with names like `ORC_REDIS__URL`."""

    def place(name: str) -> str:
        return f"{origin}{name}" if origin.endswith("/") else f"{origin} {name}"

    names = {tuple(name[len(ENV_PREFIX) :].lower().split("__")): name for name in texts}
    for path, name in names.items():
        _check_known(path, place(name), lambda leaf: leaf.variable)
    try:
        tree = _Texts(texts)()
    except SettingsError as wrong:
        bad = [name for name in texts if f'"{name[len(ENV_PREFIX) :].lower()}"' in str(wrong)]
        raise ConfigError(f"{place(', '.join(bad) or ENV_PREFIX + '…')}: this name takes a table as JSON") from None
    for path, value in _flat(tree, ()):
        # A section may come as JSON under its own name: the longest given name is the source.
        given = next(names[path[:end]] for end in range(len(path), 0, -1) if path[:end] in names)
        _check_known(path, f"{'.'.join(path)} in {place(given)}", lambda leaf: leaf.name)
        yield _Value(path, value, place(given))


class _Texts(EnvSettingsSource):
    """Parses environment variables from a mapping."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): text for name, text in self._texts.items() if text}


# ------------------------------------------------------------------------------------------------- trees, names, errors


def _leaves_of(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves_of(field.annotation, here)
        else:
            annotation = repr(field.annotation)
            yield Leaf(
                path=here,
                default=field.default,
                description=field.description or "",
                secret="SecretStr" in annotation,
                open="Mapping" in annotation,
            )


def _check_known(path: tuple[str, ...], given: str, spelling: Callable[[Leaf], str]) -> None:
    """Refuse a path that is not a setting, a section or an entry of an open table."""
    for leaf in leaves():
        if path == leaf.path[: len(path)] or (leaf.open and path[: len(leaf.path)] == leaf.path):
            return
    names = {leaf.name: leaf for leaf in leaves()}
    near = get_close_matches(".".join(path), names, n=1)
    hint = f"did you mean {spelling(names[near[0]])}?" if near else "`orc config show` lists all settings"
    raise ConfigError(f"unknown setting {given}: {hint}")


def _flat(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*path, name))
        else:
            yield (*path, name), value


def _nested(values: Mapping[tuple[str, ...], _Value]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node = tree
        for part in path[:-1]:
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                break  # a section was given as a plain value; the model says so
            node = inner
        else:
            if not (value.value == {} and isinstance(node.get(path[-1]), dict)):
                node[path[-1]] = value.value
    return tree


def _explain(invalid: ValidationError, values: Mapping[tuple[str, ...], _Value]) -> Iterator[str]:
    """Write one line per invalid value: name, value (secrets masked), source, reason."""
    for error in invalid.errors(include_url=False, include_context=False, include_input=False):
        path = tuple(str(part) for part in error["loc"])
        # pydantic appends the branch of a union to the location; the setting is the longest known part.
        while path and path not in values and not any(leaf.path[: len(path)] == path for leaf in leaves()):
            path = path[:-1]
        given = values.get(path)
        shown = "" if given is None or _may_hold_secret(given) else f" = {ascii(given.value)[:80]}"
        inside = {value.place for name, value in values.items() if name[: len(path)] == path}
        where = f" ({', '.join(sorted(inside))})" if inside else ""
        reason = error["msg"].removeprefix("Value error, ")
        yield f"{'.'.join(path)}{shown}{where}: {reason[:1].lower()}{reason[1:]}"


def _may_hold_secret(given: _Value) -> bool:
    # A URL for a whole section, or for the wrong setting, may contain a password too.
    ends = len(given.path)
    return "://" in str(given.value) or any(leaf.secret and leaf.path[:ends] == given.path for leaf in leaves())


def _shown(settings: Settings, leaf: Leaf) -> object:
    value: object = settings
    for part in leaf.path:
        value = getattr(value, part)
    return "********" if leaf.secret and value is not None else value
