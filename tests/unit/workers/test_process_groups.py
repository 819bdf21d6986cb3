"""Whether the system can kill the programs of a handler after its process has ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from orchestrator.workers.runtime.process_groups import can_kill_group_of, kill_group_of
from orchestrator.workers.runtime.process_starter import CAN_FORK

LEADER = "import os, subprocess; subprocess.Popen(['sleep', '60']); os._exit(0)"


@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are of Linux")
@pytest.mark.parametrize(("refusal", "can"), [(None, True), (errno.ESRCH, True), (errno.EINVAL, False)])
def test_a_kernel_without_signals_to_groups_is_recognized(
    refusal: int | None, *, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel before 6.9 refuses the flag; a later one that finds no group knows it. Nothing is killed."""
    asked = []

    def send(_: int, number: int, __: None, flags: int) -> None:
        asked.append((number, flags))
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    assert can_kill_group_of() is can
    assert asked == [(0, 4)]


@pytest.mark.skipif(not CAN_FORK, reason="the system cannot kill the group of a pidfd")
def test_programs_of_a_process_that_has_ended_are_killed() -> None:
    """The group of a process whose id is free ends by its pidfd."""
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, process_group=0)
    assert leader.stdout is not None
    pidfd = os.pidfd_open(leader.pid)
    try:
        leader.wait()
        kill_group_of(pidfd)
        # Only the death of the program closes its end of the pipe.
        assert leader.stdout.read() == b""
    finally:
        leader.stdout.close()
        os.close(pidfd)
