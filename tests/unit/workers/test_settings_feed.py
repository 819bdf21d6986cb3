"""The pipe from a host to a worker: each side keeps one end, so that it notices when the other one has ended."""

from __future__ import annotations

import os
import select

from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.settings import Settings
from orchestrator.workers.runtime.settings_feed import SettingsFeed


def test_worker_sees_the_end_of_its_host() -> None:
    """The pipe ends with the host, although the worker was forked with both ends."""
    feed = SettingsFeed()
    worker = os.fork()
    if worker == 0:
        feed.keep_reader()
        ready, _, _ = select.select([feed._reader], [], [], 10)
        os._exit(0 if ready and os.read(feed._reader, 1) == b"" else 1)
    feed.keep_writer()
    feed.close()
    assert os.waitpid(worker, 0)[1] == 0


def test_host_may_send_to_a_worker_that_has_ended() -> None:
    """The write fails in the kernel, which is no failure of the host; a closed end is not closed twice."""
    feed = SettingsFeed()
    worker = os.fork()
    if worker == 0:
        os._exit(0)
    os.waitpid(worker, 0)
    feed.keep_writer()
    for _ in range(3):
        feed.send(LiveSettings(Settings()))
    reused = os.dup2(1, feed._reader)
    feed.close()
    os.close(reused)  # which is open
