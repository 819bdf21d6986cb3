"""Reads the settings from their sources. Importing this module reads nothing.

Sources, the later ones win: defaults, one TOML file, a directory of secret files, the environment, options. An unknown
name is an error everywhere, with its place and the nearest valid name, so that a misspelt setting is not ignored.
Messages never show the value of a secret.
"""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_origin

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from orchestrator.core import setting_checks
from orchestrator.core.bounded_files import CONFIGURATION_BYTES, read_bounded
from orchestrator.core.errors import ConfigError
from orchestrator.core.secret_environment import settings_environ
from orchestrator.core.settings import ENV_PREFIX, Leaf, Settings, leaves
from orchestrator.core.strict_json import TwinNames, load_strict

if TYPE_CHECKING:
    import os

    from pydantic.fields import FieldInfo

RESERVED_VARIABLES: Final = frozenset({"ORC_CONFIG", "ORC_DATA_DIR", "ORC_DATA_DIR_FOREIGN", "ORC_DATA_MAXMEMORY"})
SYSTEM_FILE: Final = Path(setting_checks.SYSTEM_FILE)
_MANY_TABLES: Final = 100
_MOUNTED_FILE: Final = "secret file"
_ENVIRONMENT: Final = "environment"
SYSTEM_SECRETS: Final = Path(setting_checks.SYSTEM_SECRETS)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as `orc config show` prints it, secrets masked."""

    name: str
    value: object
    source: str
    description: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the source of each value (dotted name → source; a missing one is the default).

    Attributes:
        shadowed: the secret files whose value the environment overrides, by dotted name.
    """

    settings: Settings
    places: Mapping[str, str]
    shadowed: Mapping[str, str] = field(default_factory=dict)

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
class _Value:
    path: tuple[str, ...]
    value: object = field(repr=False)
    place: str


@dataclass(frozen=True, slots=True)
class SettingsSources:
    """The sources of a process: it can read them again.

    Attributes:
        file: the TOML file, if one is used.
        overrides: options by dotted name.
        environ: the environment at the start.
    """

    file: Path | None
    overrides: Mapping[str, object] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(
        cls,
        config: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> SettingsSources:
        """Find the sources; see `load_settings`."""
        environ = settings_environ() if environ is None else dict(environ)
        named = config or environ.get("ORC_CONFIG")
        if named:
            # Absolute, because a program may change its directory before it reads the file again.
            return cls(Path(named).absolute(), overrides or {}, environ)
        return cls(SYSTEM_FILE if _may_be_there(SYSTEM_FILE) else None, overrides or {}, environ)

    def load(self) -> LoadedSettings:
        """Read all sources.

        Raises:
            ConfigError: an unknown name, an invalid value, or an unreadable file.
        """
        merged: dict[tuple[str, ...], _Value] = {}
        shadowed: dict[str, str] = {}
        for value in self._values():
            weaker = merged.get(value.path)
            if weaker is not None and weaker.place.startswith(_MOUNTED_FILE) and value.place.startswith(_ENVIRONMENT):
                shadowed[".".join(value.path)] = weaker.place
            merged[value.path] = value
        try:
            settings = Settings(**_nested(merged))
        except ValidationError as invalid:
            raise ConfigError("\n".join(_explain(invalid, merged))) from None
        except RecursionError:
            raise ConfigError("the settings are nested too deeply") from None
        return LoadedSettings(settings, {".".join(value.path): value.place for value in merged.values()}, shadowed)

    def load_again(self) -> Settings:
        """Read all sources again, in a program that runs.

        Raises:
            ConfigError: as `load`; or the file is not one that can be read twice, such as a pipe.
        """
        mode = None if self.file is None else _mode(self.file)
        if mode is not None and not stat.S_ISREG(mode):
            raise ConfigError(f"configuration file {self.file} cannot be read again, because it is no regular file")
        return self.load().settings

    def _values(self) -> Iterator[_Value]:
        """Yield the values of every source, weakest source first."""
        if self.file is not None:
            yield from _from_file(self.file)
        credentials = self.environ.get("CREDENTIALS_DIRECTORY")
        yield from _from_secrets(Path(credentials) if credentials else SYSTEM_SECRETS)
        ours = {name: text for name, text in self.environ.items() if name.upper().startswith(ENV_PREFIX)}
        texts = {name: text for name, text in ours.items() if name not in RESERVED_VARIABLES}
        yield from _from_texts(texts, _ENVIRONMENT)
        for name, value in self.overrides.items():
            if value is not None:
                path = tuple(name.split("."))
                _check_known(path, f"option {name}", lambda leaf: leaf.name)
                yield _Value(path, value, "option")


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
    return SettingsSources.of(config, overrides, environ).load()


def default_toml() -> str:
    """Return the text of `config/default.toml`: every setting with its unit and default."""
    shipped = files("orchestrator.core") / "default.toml"
    # A wheel has the file beside this module, a checkout in its config folder.
    source = shipped if shipped.is_file() else Path(__file__).parents[2] / "config" / "default.toml"
    return source.read_text(encoding="utf-8")


def _mode(path: Path) -> int | None:
    """Return the mode of a file; None if there is none, or if this user may not know."""
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _may_be_there(path: Path) -> bool:
    """Return whether there is a file, or may be one in a folder that this user may not search."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:
        # A program that took the defaults here would work on another pool than the settings name.
        return True
    except OSError:
        return False


def _from_file(path: Path) -> Iterator[_Value]:
    try:
        values = list(_flat(tomllib.loads(read_bounded(path, CONFIGURATION_BYTES).decode()), ()))
    except OSError as failed:
        advice = ""
        if isinstance(failed, PermissionError) and path == SYSTEM_FILE:
            advice = (
                "; add this user to the group of its folder, or name another file with ORC_CONFIG (/dev/null for none)"
            )
        raise ConfigError(f"configuration file {path} cannot be read: {failed.strerror}{advice}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"configuration file {path} is not valid TOML: {wrong}") from None
    except RecursionError:
        raise ConfigError(f"configuration file {path} is nested too deeply") from None
    except ValueError:  # Python's limit for the digits of an integer
        raise ConfigError(f"configuration file {path} has a number with too many digits") from None
    for name, value in values:
        _check_known(name, f"{'.'.join(name)} in {path}", lambda leaf: leaf.name)
        yield _Value(name, value, f"file {path}")


def _from_secrets(directory: Path) -> Iterator[_Value]:
    """Read the files that are named like a variable; ignore others."""
    texts: dict[str, str] = {}
    entry = directory
    try:
        for entry in sorted(directory.iterdir()):
            if entry.name.upper().startswith(ENV_PREFIX) and not entry.is_dir():
                texts[entry.name] = read_bounded(entry, CONFIGURATION_BYTES).decode().strip()
    except OSError as failed:
        if entry is directory and isinstance(failed, (FileNotFoundError, NotADirectoryError)):
            return iter(())
        raise ConfigError(f"secret file {entry} cannot be read: {failed.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"secret file {entry} is not UTF-8 text") from None
    return _from_texts(texts, f"{_MOUNTED_FILE} {directory}/")


def _from_texts(texts: Mapping[str, str], origin: str) -> Iterator[_Value]:
    """Read text values with names like `ORC_REDIS__URL`."""

    def place(name: str) -> str:
        return f"{origin}{name}" if origin.endswith("/") else f"{origin} {name}"

    names = {tuple(name[len(ENV_PREFIX) :].lower().split("__")): name for name in texts}
    for path, name in names.items():
        _check_known(path, place(name), lambda leaf: leaf.variable)
    _check_tables(texts, names, place)
    try:
        values = list(_flat(_decode_entries(_Texts(texts)(), names, place), ()))
    except SettingsError as wrong:
        bad = [name for name in texts if f'"{name[len(ENV_PREFIX) :].lower()}"' in str(wrong)]
        told = wrong.__cause__ if isinstance(wrong.__cause__, TwinNames) else "this name takes a table as JSON"
        raise ConfigError(f"{place(', '.join(bad) or ENV_PREFIX + '…')}: {told}") from None
    except RecursionError:
        bad = [name for name, text in texts.items() if text.count("{") + text.count("[") > _MANY_TABLES]
        raise ConfigError(f"{place(', '.join(bad) or ENV_PREFIX + '…')}: nested too deeply") from None
    for path, value in values:
        # A section may come as JSON under its own name: the longest given name is the source.
        given = next(names[path[:end]] for end in range(len(path), 0, -1) if path[:end] in names)
        _check_known(path, f"{'.'.join(path)} in {place(given)}", lambda leaf: leaf.name)
        yield _Value(path, value, place(given))


def _check_tables(texts: Mapping[str, str], names: Mapping[tuple[str, ...], str], place: Callable[[str], str]) -> None:
    """Refuse a section that is given as JSON, but is no table, beside names inside the section."""
    given = {path: name for path, name in names.items() if texts[name]}
    for path, name in given.items():
        for inner in given:
            if path == inner or inner[: len(path)] != path:
                continue
            try:
                value: object = json.loads(texts[name])
            except (ValueError, RecursionError):
                value = None
            for part in inner[len(path) :]:
                if not isinstance(value, Mapping):
                    raise ConfigError(f"{place(name)}: this name takes a table as JSON")
                value = value.get(part, {})


def _decode_entries(
    tree: dict[str, Any], names: Mapping[tuple[str, ...], str], place: Callable[[str], str]
) -> dict[str, Any]:
    """Decode the lists and tables in the entries of tables of sections, which `EnvSettingsSource` leaves as text."""
    for leaf in leaves():
        for path, name in names.items():
            inside = path[len(leaf.path) :]
            if leaf.section is None or path[: len(leaf.path)] != leaf.path or len(inside) < 2:
                continue
            if len(inside) > 2:
                table = "__".join((leaf.variable, *inside[:2])).upper()
                raise ConfigError(f"{place(name)}: the names of this table keep their case only as JSON in {table}")
            field = leaf.section.model_fields[inside[1]]
            text = tree[leaf.path[0]][inside[0]].get(inside[1])
            if isinstance(text, str) and get_origin(field.annotation) in {tuple, Mapping}:
                try:
                    tree[leaf.path[0]][inside[0]][inside[1]] = load_strict(text)
                except TwinNames as twins:
                    raise ConfigError(f"{place(name)}: {twins}") from None
                except ValueError:
                    raise ConfigError(f"{place(name)}: this name takes a list or a table as JSON") from None
    return tree


class _Texts(EnvSettingsSource):
    """Parses environment variables from a mapping."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        super().__init__(Settings)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Decode a table or list; an object with a name twice is refused, as in TOML."""
        del field_name, field
        return load_strict(value)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): text for name, text in self._texts.items() if text}


# ------------------------------------------------------------------------------------------------- trees, names, errors


def _check_known(path: tuple[str, ...], given: str, spelling: Callable[[Leaf], str]) -> None:
    """Refuse a path that is not a setting, a section or an entry of an open table."""
    for leaf in leaves():
        if path == leaf.path[: len(path)]:
            return
        if leaf.open and path[: len(leaf.path)] == leaf.path:
            _check_entry(leaf, path[len(leaf.path) :], given)
            return
    names = {leaf.name: leaf for leaf in leaves()}
    near = get_close_matches(".".join(path), names, n=1)
    hint = f"did you mean {spelling(names[near[0]])}?" if near else "`orc config show` lists all settings"
    raise ConfigError(f"unknown setting {given}: {hint}")


def _check_entry(leaf: Leaf, inside: tuple[str, ...], given: str) -> None:
    """Refuse a name that the entries of an open table do not have."""
    if leaf.section is None or len(inside) < 2 or inside[1] in leaf.section.model_fields:
        return
    near = get_close_matches(inside[1], leaf.section.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(leaf.section.model_fields)}"
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
            if not isinstance(inner, dict) and _may_be_table(path):
                inner = node[part] = {}  # a stronger source gives the limit as a table
            if not isinstance(inner, dict):
                break  # a section was given as a plain value; the model says so
            node = inner
        else:
            if not (value.value == {} and isinstance(node.get(path[-1]), dict)):
                node[path[-1]] = value.value
    return tree


def _may_be_table(path: tuple[str, ...]) -> bool:
    """Return whether a path lies in an entry of an open table whose entries are plain values or tables."""
    return any(leaf.open and leaf.section is None and path[: len(leaf.path)] == leaf.path for leaf in leaves())


def _explain(invalid: ValidationError, values: Mapping[tuple[str, ...], _Value]) -> Iterator[str]:
    """Write one line per invalid value: name, value (secrets masked), source, reason."""
    for error in invalid.errors(include_url=False, include_context=False, include_input=False):
        path = tuple(str(part) for part in error["loc"])
        # pydantic appends the branch of a union to the location; the setting is the longest known part.
        while path and path not in values and not any(_is_name(path, leaf) for leaf in leaves()):
            path = path[:-1]
        given = values.get(path)
        shown = "" if given is None or _may_hold_secret(given) else f" = {_text(given.value)}"
        inside = {value.place for name, value in values.items() if name[: len(path)] == path}
        where = f" ({', '.join(sorted(inside))})" if inside else ""
        reason = error["msg"].removeprefix("Value error, ")
        yield f"{'.'.join(path)}{shown}{where}: {reason[:1].lower()}{reason[1:]}"


def _is_name(path: tuple[str, ...], leaf: Leaf) -> bool:
    """Return whether a path is the name of a setting, of a section, or of a setting of an entry of an open table."""
    if leaf.section is not None and path[: len(leaf.path)] == leaf.path:
        return len(path) <= len(leaf.path) + 2
    return leaf.path[: len(path)] == path


def _may_hold_secret(given: _Value) -> bool:
    # A URL for a whole section, or for the wrong setting, may contain a password too.
    ends = len(given.path)
    return "://" in _text(given.value, None) or any(leaf.secret and leaf.path[:ends] == given.path for leaf in leaves())


def _text(value: object, length: int | None = 80) -> str:
    """Return a value as text of ASCII, shortened."""
    try:
        return ascii(value)[:length]
    except ValueError:
        return "a number with too many digits"
    except RecursionError:
        return "a value that is nested too deeply"


def _shown(settings: Settings, leaf: Leaf) -> object:
    value = leaf.of(settings)
    if leaf.section is not None:
        return {name: entry.model_dump(mode="json", exclude_unset=True) for name, entry in value.items()}
    return "********" if leaf.secret and value is not None else value
