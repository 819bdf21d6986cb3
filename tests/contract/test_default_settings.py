"""The shipped `config/default.toml` says what the settings model says. Run this file as a script to write it anew."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.core.settings import Leaf, Settings, leaves
from orchestrator.core.settings_sources import default_toml, load_settings
from tools.default_settings import TARGET, rendered

DEFAULT_TOML = Path(__file__).parents[2] / "config" / "default.toml"
EXAMPLE_ENV = DEFAULT_TOML.with_name("example.env")

HEADING = """\
# Every setting with its unit and default. Copy what you change to /etc/orchestrator/orchestrator.toml, or name your
# file with --config or ORC_CONFIG. Secret files, the environment (ORC_SECTION__KEY) and options win over the file.
# A line that begins with "# name =" is an example of a setting that has no value by default. SIGHUP makes running
# programs read this file again; a setting that says "Needs a restart." changes with the next start.
"""


def render_defaults() -> str:
    """Write the model as a commented TOML file."""
    plain = [leaf for leaf in leaves() if not leaf.open]
    tables = [leaf for leaf in leaves() if leaf.open]
    sections = [(path, list(group)) for path, group in groupby(plain, key=lambda leaf: leaf.path[:-1])]
    parts = [HEADING]
    for path, group in sections:
        title = f"[{'.'.join(path)}]\n" if path else ""
        parts.append(title + "\n".join(_render_setting(leaf) for leaf in group) + "\n")
        if not path:
            parts += [_render_table(leaf) for leaf in tables]
    return "\n".join(parts)


def _render_setting(leaf: Leaf) -> str:
    name, value = leaf.path[-1], leaf.examples[0] if leaf.default is None else leaf.default
    return f"{_description(leaf)}\n{f'# {name}' if leaf.default is None else name} = {_toml(value)}"


def _render_table(leaf: Leaf) -> str:
    examples = [f"# {_toml(name)} = {_toml(value)}" for example in leaf.examples for name, value in example.items()]
    return "\n".join([_description(leaf), f"[{leaf.name}]", *examples]) + "\n"


def _description(leaf: Leaf) -> str:
    return _comment(leaf.description if leaf.live else f"{leaf.description} Needs a restart.")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(entry)}' for name, entry in value.items())} }}"
    return json.dumps(value)


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, 116))


def test_the_module_of_defaults_is_generated() -> None:
    """Short commands read the defaults from a module that imports nothing."""
    assert TARGET.read_text(encoding="utf-8") == rendered(), "run `make generate`"


def test_default_file_matches_the_model() -> None:
    """Every setting, its description and its default stand in the file, and nothing else does."""
    assert DEFAULT_TOML.read_text(encoding="utf-8") == render_defaults(), f"run: python {__file__}"


def test_default_file_changes_nothing(tmp_path: Path) -> None:
    """Loading the file as it is gives the defaults."""
    copy = tmp_path / "orchestrator.toml"
    copy.write_text(default_toml(), encoding="utf-8")
    assert load_settings(copy, environ={"CREDENTIALS_DIRECTORY": str(tmp_path)}) == Settings()


def test_examples_without_value_are_valid(tmp_path: Path) -> None:
    """The commented examples can be switched on."""
    example = re.compile(r"^# (?=(\"[^\"]+\"|[a-z_]+) = )", re.MULTILINE)
    without_value = [leaf for leaf in leaves() if leaf.open or leaf.default is None]
    assert (
        len(example.findall(default_toml())) == sum(len(leaf.examples) for leaf in without_value) == len(without_value)
    )
    copy = tmp_path / "orchestrator.toml"
    # Files for TLS need a URL with TLS.
    copy.write_text(example.sub("", default_toml()).replace('"redis://', '"rediss://'), encoding="utf-8")
    settings = load_settings(copy, environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    for leaf in leaves():
        if leaf.examples:
            value = _plain(leaf.of(settings))
            expected = "rediss://localhost:6379/0" if leaf.name == "redis.url" else leaf.examples[0]
            assert (value.get_secret_value() if leaf.secret else value) == expected, leaf.name
    assert tomllib.loads(default_toml())["prefix"] == Settings().prefix


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def test_every_setting_is_described() -> None:
    """A setting without a description does not exist."""
    assert [leaf.name for leaf in leaves() if not leaf.description.endswith((".", '"d".'))] == []


def test_numbers_tell_their_unit() -> None:
    """A duration ends in _s, a size in _bytes; other numbers are counts and say of what."""
    for unit, ending in (("seconds", "_s"), ("bytes", "_bytes")):
        named = {leaf.name for leaf in leaves() if leaf.name.endswith(ending)}
        assert {leaf.name for leaf in leaves() if re.search(rf"\b{unit}\b", leaf.description, re.IGNORECASE)} == named


def test_example_environment_is_valid() -> None:
    """Every variable of config/example.env is one that the program knows."""
    lines = [line.lstrip("# ") for line in EXAMPLE_ENV.read_text(encoding="utf-8").splitlines()]
    environ = dict(line.split("=", 1) for line in lines if line.startswith("ORC_"))
    environ.pop("ORC_CONFIG")
    environ.pop("ORC_DATA_DIR")
    settings = load_settings(environ={**environ, "CREDENTIALS_DIRECTORY": "/nonexistent"})
    assert settings.redis.url is not None


def test_example_environment_suits_the_units() -> None:
    """The file as it is overrides no credential and not the journal; its data directory is that of the unit."""
    lines = EXAMPLE_ENV.read_text(encoding="utf-8").splitlines()
    given = {line.partition("=")[0] for line in lines}
    assert not given & {"ORC_REDIS__URL", "ORC_CONTROL__SECRET", "ORC_LOGGING__FORMAT", "ORC_DATA_DIR"}
    (folder,) = [line.partition("=")[2] for line in lines if line.startswith("# ORC_DATA_DIR=")]
    unit = (EXAMPLE_ENV.parents[1] / "systemd" / "orchestrator-redis.service").read_text(encoding="utf-8")
    assert f"--data-dir {folder}\n" in unit


if __name__ == "__main__":
    DEFAULT_TOML.write_text(render_defaults(), encoding="utf-8")
