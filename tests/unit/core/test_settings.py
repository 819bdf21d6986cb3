"""Settings come from five places in a fixed order; what no setting is called, and what does not fit, is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from pydantic import SecretStr, ValidationError

from orchestrator.core import settings_sources as module
from orchestrator.core.errors import ConfigError
from orchestrator.core.rates import ANY_STARTS, parse_rate
from orchestrator.core.settings import ProviderSettings, RedisSettings, Settings, leaves, starts_of
from orchestrator.core.settings_sources import LoadedSettings, load_settings, load_with_places
from orchestrator.limits.providers import ProviderLimit, read_limit

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "canary-7f3e"
Load: TypeAlias = Callable[..., LoadedSettings]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Load settings from nothing but what the test gives: environment, options, file text, secret files."""
    monkeypatch.setattr(module, "SYSTEM_FILE", tmp_path / "system.toml")
    monkeypatch.setattr(module, "SYSTEM_SECRETS", tmp_path / "secrets")

    def load(
        environ: dict[str, str] | None = None,
        *,
        options: dict[str, object] | None = None,
        file: str | None = None,
        secrets: dict[str, str] | None = None,
    ) -> LoadedSettings:
        config = tmp_path / "given.toml" if file is not None else None
        if config:
            config.write_text(file or "", encoding="utf-8")
        (tmp_path / "secrets").mkdir(exist_ok=True)
        for name, text in (secrets or {}).items():
            (tmp_path / "secrets" / name).write_text(text, encoding="utf-8")
        return load_with_places(config, options, environ or {})

    return load


# ----------------------------------------------------------------------------------------------------- order of sources


def test_defaults_hold_without_any_source(load: Load) -> None:
    """Nothing given, nothing found: the defaults."""
    assert load().settings == Settings()


def test_later_sources_win(load: Load) -> None:
    """Default, file, secret file, environment, option: each beats the ones before it, setting by setting."""
    loaded = load(
        {"ORC_QUEUE__MAX_DEPTH": "3", "ORC_QUEUE__MAX_TAGS": "3"},
        options={"queue.max_depth": 4},
        secrets={"ORC_QUEUE__MAX_DEPTH": "2", "ORC_QUEUE__MAX_TAGS": "2", "ORC_QUEUE__MAX_CHILD_DEPTH": "2\n"},
        file="[queue]\nmax_depth=1\nmax_tags=1\nmax_child_depth=1\nmax_tasks=1",
    )
    queue = loaded.settings.queue
    assert (queue.max_depth, queue.max_tags, queue.max_child_depth, queue.max_tasks) == (4, 3, 2, 1)
    assert queue.max_args_bytes == Settings().queue.max_args_bytes


def test_every_value_knows_its_place(load: Load, tmp_path: Path) -> None:
    """`orc config show` can say where each value came from, and shows no secret."""
    loaded = load(
        {"ORC_QUEUE__MAX_TAGS": "3", "ORC_LIMITS": '{"gpt": "1/s"}', "ORC_WORKER": '{"processes": 2}'},
        options={"pool": "mail"},
        secrets={"ORC_REDIS__URL": f"redis://:{CANARY}@localhost"},
        file='prefix="a:b:c"',
    )
    rows = {row.name: row for row in loaded.rows()}
    assert {name: row.source for name, row in rows.items() if row.source != "default"} == {
        "prefix": f"file {tmp_path}/given.toml",
        "pool": "option",
        "redis.url": f"secret file {tmp_path}/secrets/ORC_REDIS__URL",
        "queue.max_tags": "environment ORC_QUEUE__MAX_TAGS",
        "limits": "environment ORC_LIMITS",
        "worker.processes": "environment ORC_WORKER",
    }
    assert rows["redis.url"].value == "********"
    assert rows["queue.max_tags"].value == 3
    assert len(rows) == len(leaves())
    assert CANARY not in repr(loaded) + repr(rows)


def test_the_environment_names_the_file(load: Load, tmp_path: Path) -> None:
    """ORC_CONFIG is used when no file is given, and loses against one that is."""
    named = tmp_path / "named.toml"
    named.write_text('pool="named"', encoding="utf-8")
    environ = {"ORC_CONFIG": str(named)}
    assert load(environ).settings.pool == "named"
    assert load(environ, file='pool="given"').settings.pool == "given"


def test_the_system_file_is_optional(load: Load, tmp_path: Path) -> None:
    """It is read when it is there and nobody names another one."""
    (tmp_path / "system.toml").write_text('pool="system"', encoding="utf-8")
    assert load().settings.pool == "system"
    assert load(file="").settings.pool == "default"


def test_systemd_credentials_replace_the_usual_secrets(load: Load, tmp_path: Path) -> None:
    """A unit's own credentials are read instead of /run/secrets; foreign files in there are left alone."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "ORC_POOL").write_text("mail\n", encoding="utf-8")
    (credentials / "tls.key").write_bytes(b"\xff\xfe not ours")
    loaded = load({"CREDENTIALS_DIRECTORY": str(credentials)}, secrets={"ORC_POOL": "other"})
    assert loaded.settings.pool == "mail"


def test_options_that_were_not_given_change_nothing(load: Load) -> None:
    """None means that a flag was not typed."""
    assert load({"ORC_POOL": "mail"}, options={"pool": None, "redis.url": None}).settings.pool == "mail"


def test_empty_variables_count_as_not_set(load: Load) -> None:
    """Compose files pass empty variables on for what nobody set."""
    assert load({"ORC_POOL": "", "ORC_REDIS__URL": ""}).settings == Settings()


def test_reserved_and_foreign_variables_are_left_alone(load: Load) -> None:
    """ORC_DATA_DIR belongs to the embedded server, PATH to others."""
    assert load({"ORC_DATA_DIR": "/x", "PATH": "/bin", "ORCHESTRA": "1"}).settings == Settings()


def test_limits_of_two_sources_come_together(load: Load) -> None:
    """A table whose names the user chooses is merged name by name."""
    loaded = load({"ORC_LIMITS": '{"b": "2/s"}'}, file='[limits]\na="1/s"\nb="1/s"\n"model:x"="1/min"')
    assert loaded.settings.limits == {"a": "1/s", "b": "2/s", "model:x": "1/min"}


def test_worker_groups_of_several_sources_come_together(load: Load) -> None:
    """A group in the file gets its number of processes from a variable; lists and tables are JSON there."""
    loaded = load(
        {
            "ORC_WORKERS__WRITERS__PROCESSES": "4",
            "ORC_WORKERS__FAST__AGENTS": '["a:b", "c:d"]',
            "ORC_WORKERS__FAST__ENVIRONMENT": '{"MODEL_DIR": "/srv"}',
        },
        file='[workers.writers]\nagents=["m:writer"]\nprocesses=2\n[workers.writers.environment]\nHome_Dir="/x"',
    )
    groups = loaded.settings.workers
    assert (groups["writers"].agents, groups["writers"].processes) == (("m:writer",), 4)
    assert groups["writers"].environment == {"Home_Dir": "/x"}
    assert (groups["fast"].agents, groups["fast"].processes) == (("a:b", "c:d"), None)
    (shown,) = [row for row in loaded.rows() if row.name == "workers"]
    assert shown.value == {
        "writers": {"agents": ["m:writer"], "processes": 4, "environment": {"Home_Dir": "/x"}},
        "fast": {"agents": ["a:b", "c:d"], "environment": {"MODEL_DIR": "/srv"}},
    }
    assert "environment ORC_WORKERS__WRITERS__PROCESSES" in shown.source


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"ORC_WORKERS__W__PROCESES": "4"}, "ORC_WORKERS__W__PROCESES: did you mean processes?"),
        ({"ORC_WORKERS__W__PROCESSES": "4"}, "workers.w.agents: field required"),
        ({"ORC_WORKERS__W__AGENTS": "a:b"}, "ORC_WORKERS__W__AGENTS: this name takes a list or a table as JSON"),
        ({"ORC_WORKERS__W__AGENTS": '["ab"]'}, "'ab' is not MODULE:AGENT"),
        ({"ORC_WORKERS__W__AGENTS": "[]"}, "workers.w.agents = [] "),
        ({"ORC_WORKERS__W__ENVIRONMENT__NAME": "x"}, "keep their case only as JSON in ORC_WORKERS__W__ENVIRONMENT"),
        ({"ORC_WORKERS": '{"Writers": {"agents": ["a:b"]}}'}, "group 'Writers': a name is 1 to 64 lower-case letters"),
        ({"ORC_WORKERS": '{"w": {"agents": ["a:b"], "environment": {"A=B": "x"}}}'}, "'A=B' is not the name of a"),
    ],
)
def test_invalid_worker_groups_are_refused(load: Load, given: dict[str, str], refusal: str) -> None:
    """A message names the setting or the variable, and what it takes."""
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        load(given)


def test_settings_alone_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `load_settings` looks at the environment."""
    monkeypatch.setenv("ORC_POOL", "mail")
    assert Settings().pool == "default"
    assert load_settings(environ={}).pool == "default"
    assert load_settings().pool == "mail"


def test_importing_reads_nothing(tmp_path: Path) -> None:
    """A wrong variable does no harm to a program that only imports us."""
    environ = {**os.environ, "ORC_NONSENSE": "1", "ORC_CONFIG": str(tmp_path / "missing")}
    subprocess.run([sys.executable, "-c", "import orchestrator.core.settings"], env=environ, check=True)


# -------------------------------------------------------------------------------------------------------- unknown names


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ORC_REDIS_URL": "x"}, "unknown setting environment ORC_REDIS_URL: did you mean ORC_REDIS__URL?"),
        ({"ORC_REDIS__ULR": "x"}, "unknown setting environment ORC_REDIS__ULR: did you mean ORC_REDIS__URL?"),
        ({"ORC_PREFX": "x"}, "unknown setting environment ORC_PREFX: did you mean ORC_PREFIX?"),
        ({"ORC_PREFIX__X": "x"}, "unknown setting environment ORC_PREFIX__X: did you mean ORC_PREFIX?"),
        ({"ORC_WORKER__PROCESES": ""}, "ORC_WORKER__PROCESES: did you mean ORC_WORKER__PROCESSES?"),
        ({"ORC_XYZZY": "x"}, "unknown setting environment ORC_XYZZY: `orc config show` lists all settings"),
        ({"ORC_REDIS": '{"ulr": "x"}'}, "unknown setting redis.ulr in environment ORC_REDIS: did you mean redis.url?"),
    ],
)
def test_unknown_variables_are_refused(load: Load, environ: dict[str, str], message: str) -> None:
    """A variable of ours that is no setting is an error with the nearest right name."""
    with pytest.raises(ConfigError) as refused:
        load(environ)
    assert message in str(refused.value)


def test_unknown_names_in_a_file_are_refused(load: Load, tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(ConfigError) as refused:
        load(file="[worker]\nheartbeat = 3")
    expected = f"unknown setting worker.heartbeat in {tmp_path}/given.toml: did you mean worker.heartbeat_s?"
    assert str(refused.value) == expected


def test_unknown_sections_in_a_file_are_refused(load: Load) -> None:
    """An empty section of a wrong name is noticed too."""
    with pytest.raises(ConfigError, match=r"unknown setting supervisors in .*: did you mean supervisor"):
        load(file="[supervisors]")


def test_unknown_secret_files_are_refused(load: Load, tmp_path: Path) -> None:
    """A secret file whose name begins like ours must be a setting."""
    with pytest.raises(ConfigError) as refused:
        load(secrets={"ORC_REDIS_URL": CANARY})
    assert f"secret file {tmp_path}/secrets/ORC_REDIS_URL: did you mean ORC_REDIS__URL?" in str(refused.value)
    assert CANARY not in str(refused.value)


def test_unknown_options_are_refused(load: Load) -> None:
    """A slip in the program that calls us is an error, too."""
    with pytest.raises(ConfigError, match=r"unknown setting option redis\.uri: did you mean redis\.url\?"):
        load(options={"redis.uri": "x"})


# --------------------------------------------------------------------------------------------------------- wrong values


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"ORC_WORKER__HEARTBEAT_S": "soon"},
            (
                "worker.heartbeat_s = 'soon' (environment ORC_WORKER__HEARTBEAT_S): input should be a valid number, "
                "unable to parse string as a number"
            ),
        ),
        (
            {"ORC_WORKER__HEARTBEAT_S": "nan"},
            "worker.heartbeat_s = 'nan' (environment ORC_WORKER__HEARTBEAT_S): input should be a finite number",
        ),
        (
            {"ORC_SUPERVISOR__BATCH": "501"},
            "supervisor.batch = '501' (environment ORC_SUPERVISOR__BATCH): input should be less than or equal to 500",
        ),
        (
            {"ORC_LOGGING__LEVEL": "loud"},
            (
                "logging.level = 'loud' (environment ORC_LOGGING__LEVEL): "
                "input should be 'debug', 'info', 'warning' or 'error'"
            ),
        ),
        (
            {"ORC_QUEUE__MAX_WAIT_S": "0.3"},
            "queue.max_wait_s = '0.3' (environment ORC_QUEUE__MAX_WAIT_S): input should be greater than or equal to 1",
        ),
        (
            {"ORC_RESULTS__DEAD_TTL_S": "0.3"},
            (
                "results.dead_ttl_s = '0.3' (environment ORC_RESULTS__DEAD_TTL_S): "
                "input should be greater than or equal to 1"
            ),
        ),
        ({"ORC_LIMITS": "{"}, "environment ORC_LIMITS: this name takes a table as JSON"),
        (
            {"ORC_RETRY__CAP_S": "0.5"},
            "retry (environment ORC_RETRY__CAP_S): base_s must not be greater than cap_s",
        ),
        (
            {"ORC_REDIS__URL": "redis+cluster://a/1"},
            ("redis.url (environment ORC_REDIS__URL): a cluster has database 0 only; remove what follows the hosts"),
        ),
    ],
)
def test_wrong_values_get_one_line(load: Load, environ: dict[str, str], line: str) -> None:
    """Name, value, place and reason on one line, without a link to some library."""
    with pytest.raises(ConfigError) as refused:
        load(environ)
    assert str(refused.value) == line


def test_all_wrong_values_are_told_at_once(load: Load) -> None:
    """Nobody wants to fix one line, start, and read the next."""
    with pytest.raises(ConfigError) as refused:
        load({"ORC_POOL": "a b", "ORC_PREFIX": "x"}, file="[queue]\nmax_tags=-1")
    assert [line.split(" ")[0] for line in str(refused.value).splitlines()] == ["prefix", "pool", "queue.max_tags"]


@pytest.mark.parametrize(
    "prefix", ["", "a:b", "a:b:c:d", "a::c", "a b:c:d", "a:{b}:c", "a:b:ü", "a:b:*", "a" * 127 + ":b:c"]
)
def test_prefixes_have_three_safe_parts(load: Load, prefix: str) -> None:
    """Anything that could reach into another namespace is refused."""
    with pytest.raises(ConfigError, match="must be three parts app:env:tenant"):
        load(options={"prefix": prefix})


@pytest.mark.parametrize("url", ["localhost", "http://x", "redis://", "redis:/x", "://"])
def test_urls_need_a_scheme_that_is_built(load: Load, url: str) -> None:
    """An address that cannot work is refused before anything connects."""
    with pytest.raises(ConfigError, match=r"must be redis://host:port/db, .*redis\+sentinel://.*redis\+cluster://"):
        load(options={"redis.url": url})


@pytest.mark.parametrize(("name", "rate"), [("gpt", "10/parsec"), ("a b", "1/s"), ("gpt", "0/s")])
def test_limits_are_checked(load: Load, name: str, rate: str) -> None:
    """A limit has a name that may be a key and a rate that can be read."""
    with pytest.raises(ConfigError, match=r"^limits.*(not understood|not a valid name|between 1 and)"):
        load(options={f"limits.{name}": rate})


def test_limits_of_a_provider(load: Load) -> None:
    """A limit may be a table, in a file or as JSON in the environment; it limits starts only if it says so."""
    table = '[limits."model:gpt"]\nrequests="500/min"\ntokens="200k/min"\nat_once=50\n[limits.slow]\nstarts="1/s"'
    limits = load({"ORC_LIMITS": '{"bank": {"tokens": "2M/d"}}'}, file=table).settings.limits
    assert ProviderLimit.of(limits["model:gpt"]) == ProviderLimit(500, 60_000_000, 200_000, 60_000_000, 50)
    assert ProviderLimit.of(limits["bank"]) == ProviderLimit(tokens=2_000_000, tokens_us=86_400_000_000)
    assert (starts_of(limits["slow"]), starts_of(limits["bank"])) == (parse_rate("1/s"), ANY_STARTS)
    assert ProviderLimit.of("10/s") == ProviderLimit()
    shared = ProviderLimit.of(ProviderSettings(at_once=2, shared=True))
    assert shared == ProviderLimit(at_once=2, shared=True)
    assert [read_limit(limit.text.encode()) for limit in (shared, replace(shared, shared=False))] == [
        shared,
        ProviderLimit(at_once=2),
    ]
    for weaker, stronger in (('"1/s"', '{"at_once": 2}'), ("{at_once=3}", '"2/s"')):
        merged = load({"ORC_LIMITS": f'{{"gpt": {stronger}}}'}, file=f"[limits]\ngpt={weaker}").settings.limits["gpt"]
        assert merged == ("2/s" if stronger == '"2/s"' else ProviderSettings(at_once=2))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"requests": "500/parsec"}, r"limits\.gpt.*not understood"),
        ({"tokens": "0k/min"}, r"limits\.gpt.*must lie between 1 and"),
        ({"at_once": 0}, r"limits\.gpt.*greater than or equal to 1"),
        ({}, r"limits\.gpt.*give at least one of"),
        ({"request": "5/s"}, r"limits\.gpt.*extra inputs are not permitted"),
    ],
)
def test_limits_of_a_provider_are_checked(load: Load, entry: dict[str, Any], message: str) -> None:
    """Unknown names, forms that cannot be read and tables that limit nothing are refused with the name."""
    with pytest.raises(ConfigError, match=message):
        load(options={"limits.gpt": entry})


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"ORC_REDIS__URL": CANARY}, None),
        ({"ORC_REDIS__URL": f"http://:{CANARY}@x"}, None),
        ({"ORC_REDIS": f"redis://:{CANARY}@x"}, None),
        ({"ORC_REDIS": f'"redis://:{CANARY}@x"'}, None),
        ({"ORC_REDIS": f'{{"url": ["{CANARY}"]}}'}, None),
        ({"ORC_POOL": f"redis://:{CANARY}@x"}, None),
        ({"ORC_REDIS__PASSWORD": CANARY}, None),
        ({}, f'redis = "redis://:{CANARY}@x"'),
        ({}, f'[redis]\nurl = ["{CANARY}"]'),
        ({}, f'[redis]\nurl = "{CANARY}'),
        ({}, f'redis.url.x = "{CANARY}"'),
    ],
)
def test_no_message_shows_a_secret(load: Load, environ: dict[str, str], file: str | None) -> None:
    """A password in a wrong place is not repeated."""
    with pytest.raises(ConfigError) as refused:
        load(environ, file=file)
    assert CANARY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("content", "reason"), [(b"x = ", "is not valid TOML"), (b"x = '\xff'", "is not UTF-8"), (None, "cannot be read")]
)
def test_unreadable_files_are_errors(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """The message names the file and the reason."""
    config = tmp_path / "orc.toml"
    if content is not None:
        config.write_bytes(content)
    with pytest.raises(ConfigError, match=f"configuration file {config} {reason}"):
        load_settings(config, environ={"CREDENTIALS_DIRECTORY": str(tmp_path / "none")})


# ------------------------------------------------------------------------------------------------------------- the tree


def test_the_tree_is_frozen() -> None:
    """Nobody changes a setting behind another one's back."""
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.pool = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.worker.processes = 2  # type: ignore[misc]


def test_secrets_do_not_show_in_the_tree() -> None:
    """Neither printing nor dumping settings shows the password."""
    settings = Settings(redis=RedisSettings(url=SecretStr(f"redis://:{CANARY}@localhost")))
    assert CANARY not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"


def test_the_password_of_the_server_is_known_as_a_secret() -> None:
    """Logging masks the password however it is written: as in the URL, and decoded."""
    settings = load_settings(environ={"ORC_REDIS__URL": "redis://ada:caf%C3%A9@localhost:6379/0"})
    assert set(settings.secrets) == {"caf%C3%A9", "café"}
    assert load_settings(environ={}).secrets == ()
