"""Fixtures of all tests: real Redis servers, a namespace per test, and guards over what a test leaves behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import secrets
import signal
import sys
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Final

import anyio.lowlevel
import pytest

from orchestrator.core import log, scrubbing
from orchestrator.core.log import level_in_use, set_level
from tests.faultkit.servers import RedisServer
from tests.helpers import roles
from tests.helpers.guards import LoopWatch, describe_tasks, keys_of, keys_without_ttl, running_tasks
from tests.helpers.log_checks import checked_events
from tests.helpers.server_matrix import MATRIX, MISSING, NEWEST, find_binary, servers_of, start_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    import redis


# Before a test of any folder imports them.
pytest.register_assert_rewrite("tests.helpers.end_state", "tests.fault.main_path")

USUAL_LEVEL: Final = "info"
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let tests submit before their team starts, and the programs that they start hear Ctrl-C and hang-ups.

    That holds also when the tests run behind `nohup` or `&`. What is ignored here would be ignored in the programs;
    what has a handler here has its usual effect there.
    """
    config.addinivalue_line("filterwarnings", "ignore:.*; tasks wait until `orc worker run")
    roles.install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the thousands of objects that stay until the end: neither meanwhile nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give `slow` tests longer before they count as hung: they take up to half a minute on a free machine."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, the one backend of the project."""
    return "asyncio"


# ------------------------------------------------------------------------------------------------------------- servers


@pytest.fixture(scope="session")
def running_server() -> Iterator[Callable[[str], RedisServer]]:
    """Give a server of the matrix to this test process; each is started when it is first asked for."""
    with ExitStack() as stack:
        running: dict[str, RedisServer] = {}

        def get(which: str) -> RedisServer:
            if which not in running:
                running[which] = stack.enter_context(start_server(which))
            return running[which]

        yield get


@pytest.fixture
def redis_server(request: pytest.FixtureRequest, running_server: Callable[[str], RedisServer]) -> Iterator[RedisServer]:
    """A running server without persistence: the newest Redis, and with `@pytest.mark.every_server` all in turn."""
    server = running_server(getattr(request, "param", NEWEST))
    # A test may have flushed them, and others count the calls that their programs send.
    server.load_scripts()
    yield server
    if isinstance(server, RedisServer) and (crash := server.crash_report()) is not None:
        server.restart()  # for the tests behind this one
        pytest.fail(f"Redis ended in this test:\n{crash}")


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A plain synchronous client, to look at what the code under test did."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def prefix(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Iterator[str]:
    """A namespace of the test's own. Afterwards no key may be left in it that would stay for ever."""
    # Not from `random`: that is seeded the same for every test.
    namespace = f"t{secrets.token_hex(5)}:test:t"
    with _logging_in(request, namespace):
        yield namespace
        is_silent = request.node.get_closest_marker("denied") or not _parted(request)
        refused = [] if is_silent else roles.denials(namespace)
    # A test may have left the server frozen, full or dead only if the server was its own; this one answers.
    keys = keys_of(redis_client, namespace)
    immortal = keys_without_ttl(redis_client, keys)
    if keys:
        redis_client.unlink(*keys)
    if refused and not request.node.stash.get(FAILED, False):
        pytest.fail("Redis refused what a program needs; see `orc auth acl`:\n" + "\n".join(refused))
    if immortal and not request.node.stash.get(FAILED, False):
        pytest.fail("keys without a time to live that are not listed as permanent:\n" + "\n".join(immortal))


def _parted(request: pytest.FixtureRequest) -> bool:
    """Return whether the programs of a test log in with the users of their roles."""
    if request.node.get_closest_marker("default_user") or request.path.stem in roles.DEFAULT_USER:
        return False
    if request.node.get_closest_marker("slow") and request.path.stem not in roles.SLOW_TOO:
        return False
    return not roles.FOLDERS.isdisjoint(request.path.parts)


def _logging_in(request: pytest.FixtureRequest, namespace: str) -> AbstractContextManager[None]:
    """Let the programs of a test log in with the users of their roles."""
    if not _parted(request):
        return nullcontext()
    marker = request.node.get_closest_marker("roles")
    chosen = {} if marker is None else marker.kwargs
    # A program that gives commands is no client.
    if ".admin" in inspect.getsource(request.module) or "dashboard" in request.path.parts:
        chosen = {"client": "operator", **chosen}
    return roles.logging_in(namespace, **chosen)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `every_server` once on each server; see `servers_of` for those that are `slow`."""
    marker = metafunc.definition.get_closest_marker("every_server")
    if marker and "redis_server" in metafunc.fixturenames:
        servers = servers_of(metafunc.definition.path, alone=marker.kwargs.get("alone", False))
        metafunc.parametrize("redis_server", servers, indirect=True)


def pytest_report_header() -> list[str]:
    """Say which servers the tests run on."""
    found = {which: find_binary(which) for which in MATRIX}
    return [f"{which}: {f'{binary.version} ({binary.path})' if binary else 'none'}" for which, binary in found.items()]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once in CI: a run that is ended from outside prints no summary."""
    if report.failed and os.environ.get("CI") and not os.environ.get("PYTEST_XDIST_WORKER"):
        reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or str(report.longrepr)[-300:]
        sys.stdout.write(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s): {reason[:300]}\n")
        sys.stdout.flush()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested for want of a server."""
    reports = terminalreporter.stats.get("skipped", [])
    for reason in MISSING.values():
        if skipped := sum(reason in str(report.longrepr) for report in reports):
            terminalreporter.write_line(f"{skipped} tests skipped: {reason}")


# -------------------------------------------------------------------------------------------------------------- guards


@pytest.fixture(scope="session")
def wrong_events() -> Iterator[list[str]]:
    """What differs between the events that this process logs and their declarations."""
    with checked_events() as found:
        yield found


@pytest.fixture(autouse=True)
def event_guard(request: pytest.FixtureRequest, wrong_events: list[str]) -> Iterator[None]:
    """Fail a test in which an event was logged with a key, or a type of value, that is not declared."""
    wrong_events.clear()
    yield
    if wrong_events and not request.node.stash.get(FAILED, False):
        pytest.fail("logged otherwise than tools/log_events.py declares:\n" + "\n".join(wrong_events))


@pytest.fixture(autouse=True)
def usual_log_level() -> Iterator[None]:
    """Take back the level that a test has configured or ordered, so that the next one meets the usual level."""
    yield
    if level_in_use() != USUAL_LEVEL:
        root = logging.getLogger()
        before = root.level
        log._levels.overrides.clear()
        set_level(USUAL_LEVEL)
        root.setLevel(before)


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Forget the secrets of a test, so that the next one may store their texts."""
    yield
    if scrubbing._learned:
        scrubbing._learned.clear()
        scrubbing._known = scrubbing.Scrubber((), keep_lines=True)  # type: ignore[misc]


@pytest.fixture(scope="session")
def loop_watch() -> Iterator[LoopWatch]:
    """The thread that notices blocked loops."""
    watch = LoopWatch()
    yield watch
    watch.close()


@pytest.fixture
async def loop_guard(request: pytest.FixtureRequest, loop_watch: LoopWatch) -> AsyncIterator[None]:
    """Fail an async test that leaves a task behind or blocks the loop for half a second."""
    before = running_tasks()
    loop_watch.start(asyncio.get_running_loop())
    yield
    blocked = loop_watch.stop()
    await anyio.lowlevel.checkpoint()  # lets tasks end that were cancelled in the last turn
    leaked = running_tasks() - before
    if request.node.stash.get(FAILED, False):
        return
    if leaked:
        pytest.fail("tasks still running after the test:\n" + describe_tasks(leaked))
    if blocked and not request.node.get_closest_marker("blocks_loop"):
        pytest.fail("the event loop was blocked for more than half a second here:\n" + blocked)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    """Put every async test under the guard of its loop, which is set up first and torn down last."""
    if name.startswith("test") and inspect.iscoroutinefunction(inspect.unwrap(obj) if callable(obj) else obj):
        pytest.mark.usefixtures("loop_guard")(obj)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the guards keep silent about tests that have failed already."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
