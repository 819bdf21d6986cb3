"""Settings that are read without their models are the same, or are left to the models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core import plain_settings
from orchestrator.core.default_settings import SECTIONS
from orchestrator.core.plain_settings import load_plain
from orchestrator.core.settings import leaves
from orchestrator.core.settings_sources import SettingsSources

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = {"CREDENTIALS_DIRECTORY": os.devnull}
URL = "rediss://ada:hunter2@redis.example:6380/2"


@pytest.fixture(autouse=True)
def _without_system_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plain_settings, "SYSTEM_FILE", str(tmp_path / "orchestrator.toml"))


def _bare(value: object) -> object:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, {}),
        ({"ORC_REDIS__URL": URL, "ORC_PREFIX": "shop:prod:acme", "ORC_POOL": "p1"}, {}),
        ({"ORC_REDIS__URL": URL, "ORC_POOL": ""}, {"redis.url": "redis://localhost", "pool": "p2", "prefix": None}),
        ({"ORC_REDIS__URL": "redis+sentinel://a,b/main/1"}, {}),
        ({"ORC_REDIS__URL": "unix:///run/redis.sock", "ORC_DATA_DIR": "/tmp/x"}, {}),
    ],
)
def test_plain_settings_are_those_of_the_models(environ: dict[str, str], options: dict[str, Any]) -> None:
    """Every setting has the same value and type, and the same source; so have derived values."""
    plain = load_plain(environ | NOWHERE, options)
    assert plain is not None
    whole = SettingsSources(None, options, environ | NOWHERE).load()
    for leaf in leaves():
        here, there = _bare(leaf.of(plain.settings)), _bare(leaf.of(whole.settings))
        assert (here, type(here)) == (there, type(there)), leaf.name
    assert plain.places == whole.places
    assert plain.shadowed == whole.shadowed == {}
    assert plain.settings.redis.place == whole.settings.redis.place
    assert sorted(plain.settings.secrets) == sorted(whole.settings.secrets)
    assert "hunter2" not in repr(plain)
    named = {(row.name, str(row.value), row.source) for row in whole.rows() if row.source != "default"}
    assert {(row.name, str(row.value), row.source) for row in plain.rows()} == named
    assert plain.settings.model_copy(update={"pool": "other"}).pool == "other"
    assert plain.settings.pool == whole.settings.pool
    sections = [getattr(plain.settings, name) for name in SECTIONS]
    assert len({*sections, *sections}) == len(sections) > 5, "keys of caches"


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"ORC_LOGGING__LEVEL": "debug"}, {}),
        ({"ORC_NONSENSE": "1"}, {}),
        ({"orc_pool": "p1"}, {}),
        ({"ORC_CONFIG": "/etc/other.toml"}, {}),
        ({"ORC_REDIS__URL": "nonsense"}, {}),
        ({"ORC_PREFIX": "two:parts"}, {}),
        ({"ORC_POOL": "a b"}, {}),
        ({}, {"logging.level": "debug"}),
        ({}, {"pool": ""}),
        ({}, {"redis.url": "http://x"}),
    ],
)
def test_others_are_left_to_the_models(environ: dict[str, str], options: dict[str, Any]) -> None:
    """What is not plain, and what is invalid, is read by the models, which name what is wrong."""
    assert load_plain(environ | NOWHERE, options) is None


def test_files_are_left_to_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret file or the system's file may hold any setting."""
    assert load_plain({"CREDENTIALS_DIRECTORY": str(tmp_path)}, {}) is not None
    (tmp_path / "ORC_REDIS__URL").write_text(URL)
    assert load_plain({"CREDENTIALS_DIRECTORY": str(tmp_path)}, {}) is None
    monkeypatch.setattr(plain_settings, "SYSTEM_FILE", str(tmp_path / "ORC_REDIS__URL"))
    assert load_plain(NOWHERE, {}) is None
