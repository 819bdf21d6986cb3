"""Reads plain settings without their models, which take long to import, for the short commands of the program `orc`.

Plain are settings without a file whose variables and options give at most URL, prefix and pool.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from orchestrator.core.default_settings import SECTIONS, VALUES
from orchestrator.core.redis_url import parse_url, url_problem
from orchestrator.core.setting_checks import SYSTEM_FILE, SYSTEM_SECRETS, check_pool, check_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.redis_url import RedisUrl
    from orchestrator.core.settings_sources import LoadedSettings

_NAMES: Final = {"ORC_REDIS__URL": "redis.url", "ORC_PREFIX": "prefix", "ORC_POOL": "pool"}
_NO_SETTINGS: Final = frozenset({"ORC_DATA_DIR", "ORC_DATA_DIR_FOREIGN"})
_MASKED: Final = "********"


class _PlainSecret:
    """A text that is not printed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_MASKED!r})"


class _PlainSection(SimpleNamespace):
    """A section; like that of the models, it is a key of caches."""

    def __hash__(self) -> int:  # type: ignore[override]  # the base is not hashable
        return id(self)


class _PlainRedis(_PlainSection):
    url: _PlainSecret | None

    @property
    def place(self) -> RedisUrl | None:
        if self.url is None:
            return None
        return parse_url(self.url.get_secret_value()).with_tls(
            ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key, verify=self.tls_verify
        )


class _PlainTree(_PlainSection):
    redis: _PlainRedis

    @property
    def secrets(self) -> tuple[str, ...]:
        place = self.redis.place
        return () if place is None else tuple(place.passwords)

    def model_copy(self, *, update: Mapping[str, Any]) -> _PlainTree:
        changed = copy(self)
        changed.__dict__.update(update)
        return changed


class _PlainRow(NamedTuple):
    name: str
    value: object
    source: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class _PlainLoaded:
    """The attributes of `LoadedSettings`; its rows are those that have a source."""

    settings: _PlainTree
    places: Mapping[str, str]
    values: Mapping[str, str] = field(repr=False)
    shadowed: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Sequence[_PlainRow]:
        return [
            _PlainRow(name, _MASKED if name == "redis.url" else value, self.places[name])
            for name, value in self.values.items()
        ]


def load_plain(environ: Mapping[str, str], options: Mapping[str, object]) -> LoadedSettings | None:
    """Return plain settings.

    Args:
        environ: the environment.
        options: by dotted name; None if one is absent.

    Returns:
        None if they are not plain, or not valid; `SettingsSources.load` reads them then and names what is wrong.
    """
    values = _given(environ, options)
    if (
        values is None
        or _may_be_there(SYSTEM_FILE)
        or _has_secret_files(environ.get("CREDENTIALS_DIRECTORY") or SYSTEM_SECRETS)
    ):
        return None
    texts = {name: text for name, (text, _) in values.items()}
    try:
        settings = _make_tree(**{name.rpartition(".")[2]: text for name, text in texts.items()})
    except ValueError:
        return None
    loaded = _PlainLoaded(settings, {name: place for name, (_, place) in values.items()}, texts)
    return cast("LoadedSettings", loaded)


def _given(environ: Mapping[str, str], options: Mapping[str, object]) -> dict[str, tuple[str, str]] | None:
    """Return values with their sources by dotted name; None if there are others than plain ones."""
    found: dict[str, tuple[str, str]] = {}
    for variable, text in environ.items():
        if not variable.upper().startswith("ORC_") or variable in _NO_SETTINGS or not text:
            continue
        if variable not in _NAMES:
            return None
        found[_NAMES[variable]] = (text, f"environment {variable}")
    for name, value in options.items():
        if value is None:
            continue
        if name not in _NAMES.values() or not isinstance(value, str):
            return None
        found[name] = (value, "option")
    return found


def _may_be_there(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _has_secret_files(folder: str) -> bool:
    try:
        return any(entry.name.upper().startswith("ORC_") for entry in Path(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _make_tree(url: str | None = None, prefix: str | None = None, pool: str | None = None) -> _PlainTree:
    sections = {name: _PlainSection(**values) for name, values in SECTIONS.items()}
    tree = _PlainTree(**VALUES, **sections)
    tree.redis = _PlainRedis(**SECTIONS["redis"])
    if url is not None:
        if (problem := url_problem(url)) is not None:
            raise ValueError(problem)
        tree.redis.url = _PlainSecret(url)
        _ = tree.redis.place
    if prefix is not None:
        tree.prefix = check_prefix(prefix)
    if pool is not None:
        tree.pool = check_pool(pool)
    return tree
