"""Sources that cannot be read are a `ConfigError` at the start; a reload keeps the old settings."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import LogMessage
from orchestrator.core.notify import Notifier
from orchestrator.core.settings import Settings, WorkerGroupSettings
from orchestrator.core.settings_reload import SettingsReloader
from orchestrator.core.settings_sources import SettingsSources
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGER = 65534
CANARY = "canary99"
DEEP = 3000

# Becomes another user after all imports, because the interpreter may lie in a folder of root.
BECOME = f"""
import os
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
"""
START = """
import sys
from pathlib import Path
from orchestrator import Orchestrator
from orchestrator.cli.app import main
from orchestrator.core import settings_sources
main(["config", "validate", "--config", "/dev/null"])
main(["config", "validate", "--config", "/nowhere"])
Orchestrator()
sys.stderr.write("---\\n")
settings_sources.SYSTEM_FILE = Path(sys.argv.pop(1))
"""
VALIDATE = START + BECOME + "sys.exit(main(['config', 'validate']))"
CLIENT = START + BECOME + "Orchestrator()"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may search."""
    made = Path(tempfile.mkdtemp(prefix="orc-settings-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def log_lines() -> Iterator[list[dict[str, object]]]:
    """The events of reloads, as dictionaries."""
    lines: list[dict[str, object]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert isinstance(record.msg, LogMessage)
            lines.append({"event": record.msg.event, **record.msg.values})

    logger, collector = logging.getLogger("orchestrator.core.settings_reload"), Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(collector)
    logger.setLevel(level)


def as_stranger(script: str, file: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user who is in no group of the file."""
    return subprocess.run(
        [sys.executable, "-c", script, str(file)],
        cwd="/",
        env={"PATH": os.defpath, "ORC_REDIS__URL": "redis://h/0", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_closed_system_folder(folder: Path) -> None:
    """Settings that the user may not read are no defaults; the message names both ways out."""
    closed = folder / "etc"
    closed.mkdir(mode=0o750)
    file = closed / "orchestrator.toml"
    for exists in (False, True):
        if exists:
            file.write_text('prefix = "a:b:c"\n')
        refused = as_stranger(VALIDATE, file)
        assert refused.returncode == 78, refused.stderr
        assert refused.stderr.partition("---\n")[2] == (
            f"error: configuration file {file} cannot be read: Permission denied; add this user to the group of its "
            "folder, or name another file with ORC_CONFIG (/dev/null for none)\n"
        )
    assert "ConfigError: configuration file" in as_stranger(CLIENT, file).stderr
    own = as_stranger(VALIDATE, file, ORC_CONFIG="/dev/null")
    assert own.returncode == 0, own.stderr
    closed.chmod(0o755)
    assert as_stranger(VALIDATE, file).returncode == 0


RELOAD = (
    """
import sys
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.notify import Notifier
from orchestrator.core.settings_reload import SettingsReloader
from orchestrator.core.settings_sources import SettingsSources
sources = SettingsSources.of(sys.argv[1], {})
live = LiveSettings(sources.load().settings)
reloader = SettingsReloader(sources, live, Notifier(), program="supervisor")
reloader.reload()
"""
    + BECOME
    + """
for _ in range(2):
    print("ready", flush=True)
    sys.stdin.readline()
    print(reloader.reload(), live.generation, dict(live.current.limits), flush=True)
"""
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_reload_in_closed_folder(folder: Path) -> None:
    """A folder that is closed after the start: the reload is refused, and opened again it succeeds."""
    file = folder / "etc" / "orchestrator.toml"
    file.parent.mkdir(mode=0o755)
    file.write_text('[limits]\nshared = "1/d"\n')
    with subprocess.Popen(
        [sys.executable, "-c", RELOAD, str(file)],
        cwd="/",
        env={"PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        found = []
        for mode in (0o700, 0o755):
            assert program.stdout.readline() == "ready\n"
            file.write_text('[limits]\nshared = "2/d"\n')
            file.parent.chmod(mode)
            program.stdin.write("\n")
            program.stdin.flush()
            found.append(program.stdout.readline())
    assert found == ["False 1 {'shared': '1/d'}\n", "True 2 {'shared': '2/d'}\n"]


FAULTS = {
    "deep TOML": ("limits = " + "[" * DEEP + "]" * DEEP, {}, "nested too deeply"),
    "deep names": ("limits." + "a." * DEEP + "a = 1", {}, "nested too deeply"),
    "long integer": ("[worker]\nprocesses = " + "9" * 5000, {}, "has a number with too many digits"),
    "long hexadecimal integer": ("[worker]\nprocesses = 0x" + "f" * 5000, {}, "worker.processes"),
    "long hexadecimal text": ("prefix = 0x" + "f" * 5000, {}, "prefix"),
    "a folder": (None, {}, "cannot be read"),
    "deep JSON": ("", {"ORC_LIMITS": '{"a": ' * DEEP + "1" + "}" * DEEP}, "ORC_LIMITS"),
    "long JSON number": ("", {"ORC_LIMITS": '{"a": ' + "9" * 5000 + "}"}, "ORC_LIMITS"),
    "list beside an entry": ("", {"ORC_WORKERS": "[]", "ORC_WORKERS__A__AGENTS": '["a:b"]'}, "ORC_WORKERS"),
    "text beside an entry": ("", {"ORC_WORKERS": '"x"', "ORC_WORKERS__A__AGENTS": '["a:b"]'}, "ORC_WORKERS"),
    "number beside an entry": ("", {"ORC_WORKERS": '{"a": 1}', "ORC_WORKERS__A__AGENTS": '["a:b"]'}, "ORC_WORKERS"),
    "number and entry": ("", {"ORC_WORKERS__A": "1", "ORC_WORKERS__A__AGENTS": '["a:b"]'}, "ORC_WORKERS"),
    "list beside a section": ("", {"ORC_REDIS": "[]", "ORC_REDIS__URL": "redis://h/0"}, "ORC_REDIS"),
    "number beside a section": ("", {"ORC_WORKER": "5", "ORC_WORKER__PROCESSES": "2"}, "ORC_WORKER"),
    "deep entry": ("", {"ORC_WORKERS__A__AGENTS": "[" * DEEP + "]" * DEEP}, "ORC_WORKERS__A__AGENTS"),
    "long number of an entry": ("", {"ORC_WORKERS__A__AGENTS": "[" + "9" * 5000 + "]"}, "ORC_WORKERS__A__AGENTS"),
}


@each_case("text,environ,part", FAULTS.values(), ids=FAULTS)
def test_strange_sources(text: str | None, environ: dict[str, str], part: str) -> None:
    """A `ConfigError` in one short line at the start; the same sources in a reload keep the old settings."""
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "orchestrator.toml"
        if text is None:
            file.mkdir()
        else:
            file.write_text(text)
        sources = SettingsSources(file, {}, {**environ, "CREDENTIALS_DIRECTORY": made})
        with pytest.raises(ConfigError) as refused:
            sources.load()
        assert part in str(refused.value)
        assert len(str(refused.value)) < 1000
        live = LiveSettings(Settings())
        assert SettingsReloader(sources, live, Notifier(), program="supervisor").reload() is False
        assert live.generation == 1


def test_unexpected_failure_of_reload(monkeypatch: pytest.MonkeyPatch, log_lines: list[dict[str, object]]) -> None:
    """A fault of this project keeps the old settings too. Its text may have values, so the log has its type only."""

    def fail(_: SettingsSources) -> Settings:
        raise KeyError(CANARY)

    monkeypatch.setattr(SettingsSources, "load_again", fail)
    live = LiveSettings(Settings())
    assert SettingsReloader(SettingsSources(None, {}, {}), live, Notifier(), program="worker").reload() is False
    assert [line["problems"] for line in log_lines if line["event"] == "settings_reload_refused"] == [
        ["unexpected KeyError"]
    ]
    assert CANARY not in str(log_lines)


URLS = tuple(
    f"{scheme}://{login}{special}{CANARY}@h:6379/0"
    for scheme in ("redis", "rediss", "unix")
    for login in (":pa", "user:pa", ":12", "user:12")
    for special in "/#?["
) + tuple(
    f"{scheme}://{login}{special}{CANARY}@h:6379,g:6379{path}"
    for scheme, path in (("redis+sentinel", "/group/0"), ("rediss+sentinel", "/group"), ("redis+cluster", ""))
    for login in (":pa", "user:12")
    for special in "/#?"
)


@each_case("url", [*URLS, f"redis://:pa]{CANARY}@h/0", f"redis://:{CANARY}\u2100@h/0", f"redis://:{CANARY}@h:99999/0"])
def test_special_characters_in_passwords(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A password that is not percent-encoded is refused, and no part of it is printed: by the CLI, a client, a log."""
    from orchestrator import Orchestrator
    from orchestrator.cli.app import main
    from orchestrator.store.locating import locate

    empty = tmp_path / "empty.toml"
    empty.touch()
    assert main(["config", "validate", "--config", str(empty), "--url", url]) == 78
    for make in (lambda: Orchestrator(url), lambda: locate(url)):
        with pytest.raises(ConfigError) as refused:
            make()
        assert CANARY not in str(refused.value)
        assert "percent-encode" in str(refused.value)
    sources = SettingsSources(empty, {"redis.url": url}, {})
    assert SettingsReloader(sources, LiveSettings(Settings()), Notifier(), program="worker").reload() is False
    printed = "".join(capfd.readouterr())
    assert "percent-encode" in printed
    assert not [piece for piece in (CANARY, CANARY[1:], "'pa'", "user:pa") if piece in printed]


@each_case(
    "url",
    [
        "redis://h", "redis://h:6379", "redis://:p@h:6379/0", "redis://u:p%2F%23%3F%5B@h/1", "redis://[::1]:6379/0",
        "unix:///run/a@b.sock", "unix://:p@/run/a@b.sock", "redis://:a@b@h/0", "redis://:6379", "rediss://u:p@h:1",
        "redis+sentinel://h/group", "redis+sentinel://u:p%2F@h:1,[::1]:2/group/3?sentinel_password=x", "redis+cluster://h",
        "rediss+sentinel://:a@b,c[d@h/g", "rediss+cluster://u:p@h:1,g:2/0?ssl_certfile=x",
    ],
)  # fmt: skip
def test_urls_that_fit(url: str) -> None:
    """Encoded passwords, paths with @ and addresses of IPv6 are valid."""
    assert SettingsSources(None, {"redis.url": url}, {}).load().settings.redis.url is not None


def test_what_needs_a_restart(log_lines: list[dict[str, object]], tmp_path: Path) -> None:
    """A reload reports only what its process uses: a host no other group, a supervisor no group."""
    file = tmp_path / "orchestrator.toml"
    group = WorkerGroupSettings(agents=("a:b",))
    live = LiveSettings(Settings(workers={"writers": group, "a.b": group}))
    file.write_text(
        '[workers.writers]\nagents = ["a:c"]\n[workers.readers]\nagents = ["a:b"]\n[worker]\nheartbeat_s = 1\n'
        'processes = 3\nhealth = "1"\n[supervisor]\nleader_lease_s = 3\n'
    )
    worker = {"worker.processes", "worker.heartbeat_s", "worker.health"}
    for program, own, expected in (
        ("supervisor", None, {"worker.heartbeat_s", "supervisor.leader_lease_s"}),
        ("worker", None, worker),
        ("worker", "writers", worker | {"workers.writers"}),
        ("worker", "a.b", worker | {"workers.a.b"}),
        ("worker", "other", worker),
    ):
        log_lines.clear()
        sources = SettingsSources(file, {}, {})
        assert SettingsReloader(sources, live, Notifier(), program=program, group=own).reload()  # type: ignore[arg-type]
        (line,) = [line for line in log_lines if line["event"] == "settings_reloaded"]
        assert set(line["needs_restart"]) == expected  # type: ignore[call-overload]


def test_reprs_hide_secrets() -> None:
    """Reprs, as in tracebacks with locals, have no value of a source."""
    from orchestrator.cli.terminal.options import Globals
    from orchestrator.core.settings_sources import LoadedSettings
    from orchestrator.workers.runtime.handler_process import Hello

    url = f"redis://:{CANARY}@h/0"
    environ = {"ORC_REDIS__URL": url, "ORC_CONTROL__SECRET": CANARY * 3, "OTHER": CANARY}
    sources = SettingsSources.of(None, {"redis.url": url}, {**environ, "ORC_CONFIG": "/dev/null"})
    loaded: LoadedSettings = sources.load()
    shown = [
        sources, *sources._values(), loaded, loaded.rows(), loaded.settings, Globals(url=url),
        Hello(None, "info", "json", environ, (CANARY,)),
    ]  # fmt: skip
    for one in shown:
        assert CANARY not in repr(one), type(one)
        assert CANARY not in str(one), type(one)
