"""Messages to the service manager: their form, their addresses, and who may send pings."""

from __future__ import annotations

import os
import time

import pytest

from orchestrator.core.notify import Notifier
from orchestrator.testing.waiting import wait_until
from tests.helpers.service_manager import ServiceManager


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_messages_arrive(*, abstract: bool) -> None:
    """READY, STATUS, RELOADING, STOPPING and the extension have the form of sd_notify(3), at either kind of address."""
    with ServiceManager(abstract=abstract) as manager:
        notifier = Notifier.take(manager.environment())
        assert notifier.active
        notifier.ready("leads\nREADY=0")
        notifier.status("leads READY=0")  # unchanged, so that it is not sent again
        notifier.status("stands by")
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        notifier.reloading()
        notifier.ready()
        notifier.extend_timeout(2.5)
        notifier.stopping("stops")
        fields = [message.fields for message in manager.messages]
        assert int(fields[2].pop("MONOTONIC_USEC")) >= before_us
        assert fields == [
            {"READY": "1", "STATUS": "leads READY=0"},
            {"STATUS": "stands by"},
            {"RELOADING": "1"},
            {"READY": "1", "STATUS": "stands by"},
            {"EXTEND_TIMEOUT_USEC": "2500000"},
            {"STOPPING": "1", "STATUS": "stops"},
        ]
        assert {message.pid for message in manager.messages} == {os.getpid()}


def test_children_get_no_variables() -> None:
    """A child process inherits neither the socket nor the watchdog."""
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    notifier = Notifier.take(environ)
    assert environ == {"PATH": "/bin"}
    assert notifier.watchdog_every_s == 1.0


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {},
    ],
    ids=["of another process", "zero", "no number", "none"],
)
def test_watchdog_of_another_process_gets_no_ping(environ: dict[str, str]) -> None:
    """Pings go only to a watchdog that guards this very process."""
    with ServiceManager() as manager:
        notifier = Notifier.take(manager.environment() | environ)
        assert notifier.watchdog_every_s is None
        assert notifier.until_ping_s() is None
        notifier.ping()
        assert manager.messages == []


def test_ping_comes_at_a_third_of_the_limit() -> None:
    """A loop may call `ping` as often as it likes."""
    with ServiceManager() as manager:
        notifier = Notifier.take(manager.environment(watchdog_s=0.3))
        for _ in range(3):
            notifier.ping()
        assert manager.count("WATCHDOG") == 1
        wait_until(lambda: notifier.until_ping_s() == 0.0, "the next ping to be due")
        notifier.ping()
        first, second = manager.messages
        assert second.fields == {"WATCHDOG": "1"}
        assert second.at_s - first.at_s < 0.3


def test_missing_service_manager_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Without a socket nothing is sent; a socket that is gone is logged once."""
    silent = Notifier.take({})
    assert not silent.active
    silent.ready("leads")
    silent.stopping("stops")
    gone = Notifier.take({"NOTIFY_SOCKET": "/nonexistent/notify"})
    gone.ready("leads")
    gone.stopping("stops")
    assert caplog.text.count("notify_failed") == 1
