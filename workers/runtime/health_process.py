"""The process that serves the health of a worker host."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from orchestrator.core.backoff import ExponentialBackoff
from orchestrator.core.event_loop import run_loop
from orchestrator.core.log import get_logger
from orchestrator.core.parent_process import end_with_parent
from orchestrator.monitoring.server import check_installed, remove_socket
from orchestrator.workers.runtime.host_health import HostHealth
from orchestrator.workers.runtime.verdicts import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.workers.runtime.host_memory import HostMemory
    from orchestrator.workers.runtime.host_signals import HostSignals
    from orchestrator.workers.runtime.settings_feed import SettingsFeed

HEALTHY_AFTER_S: Final = 30.0
"""Lifetime of a child after which its death starts a new back-off."""

_log = get_logger(__name__)


class HealthProcess:
    """The process that serves the health of a host. Its end changes nothing for the workers; the host starts it again.

    Raises:
        ConfigError: the libraries of the server are missing.
    """

    def __init__(self, settings: Settings, memories: Mapping[str, HostMemory]) -> None:
        assert settings.worker.health is not None
        check_installed("worker.health")
        self._address = settings.worker.health
        self._health = HostHealth(settings, self._address, memories, watched=True)
        self._pid: int | None = None
        self._failures = 0
        self._started_s = -math.inf
        self._backoff = ExponentialBackoff(base_s=0.5, cap_s=30.0)
        self.due_s = 0.0
        """When it starts; infinite while it runs."""

    def start_if_due(self, received: HostSignals, feeds: Sequence[SettingsFeed]) -> None:
        """Start the process, which does not keep the feeds, unless it runs or has ended a moment ago."""
        if time.monotonic() < self.due_s:
            return
        flush_output()
        end_with_host = end_with_parent(signal.SIGKILL)
        self._started_s, self.due_s = time.monotonic(), math.inf
        pid = received.fork()
        if pid == 0:
            end_with_host()
            for feed in feeds:
                feed.close()
            _become_health(self._health)
        self._pid = pid

    def ended(self, pid: int) -> bool:
        """Return whether it was this process that ended, and plan its restart."""
        if pid != self._pid:
            return False
        self._failures = 1 if time.monotonic() - self._started_s > HEALTHY_AFTER_S else self._failures + 1
        self._pid, self.due_s = None, time.monotonic() + self._backoff.delay_s(self._failures)
        _log.error("health_process_ended", pid=pid)
        return True

    def end(self) -> None:
        """End the process with its host."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            remove_socket(self._address)


def _become_health(health: HostHealth) -> NoReturn:
    """In the process that serves the health: do that, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)
        # The host ends it when all workers have drained; until then it tells that they do.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        run_loop(health.serve)
    except BaseException as broken:  # noqa: BLE001 - a child must not return into its parent's frames
        _log.error("health_process_failed", pid=os.getpid(), error=describe(broken), exc_info=True)
    finally:
        flush_output()
        os._exit(code)


def flush_output() -> None:
    """Flush the output, before a fork or an exit that would double or lose it."""
    for stream in (sys.stdout, sys.stderr):
        # A handler may have closed the stream, or its reader may be gone.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
