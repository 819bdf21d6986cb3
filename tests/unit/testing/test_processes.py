"""An actor process can be watched, killed, frozen and thawed, and leaves nothing behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faultkit.processes import ActorProcess
from tests.helpers.waiting import wait_for, wait_until

_COUNTER = "import itertools, time\nfor i in itertools.count(): print('tick', i); time.sleep(0.01)"
_PARENT = "import os, time\npid = os.fork()\nprint('child', pid) if pid else None\ntime.sleep(60)"


def _ticker() -> ActorProcess:
    return ActorProcess.python("-c", _COUNTER, name="ticker")


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def test_output_and_exit() -> None:
    """Output of both kinds is kept in order and the exit code is told."""
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    with ActorProcess.python("-c", program, name="short") as actor:
        assert actor.wait_exit() == 3
        assert actor.output == "out\nerr\n"


def test_kill() -> None:
    """A killed process is gone when `kill` returns."""
    with _ticker() as actor:
        actor.wait_output("tick 1\n")
        actor.kill()
        assert actor.returncode == -signal.SIGKILL
        assert not _runs(actor.pid)


def test_terminate() -> None:
    """SIGTERM reaches the process."""
    with _ticker() as actor:
        actor.wait_output("tick")
        actor.terminate()
        assert actor.wait_exit() == -signal.SIGTERM


def test_freeze_and_thaw() -> None:
    """A frozen process writes nothing until it is thawed."""
    with _ticker() as actor:
        actor.wait_output("tick")
        actor.freeze()
        before = actor.output
        with pytest.raises(TimeoutError):
            wait_until(lambda: actor.output != before, "more output", timeout_s=0.2)
        actor.thaw()
        wait_until(lambda: actor.output != before, "output after the thaw")


def test_closing_takes_the_children_along() -> None:
    """Leaving the block kills what the process forked, frozen or not."""
    with ActorProcess.python("-c", _PARENT, name="parent") as actor:
        child = int(actor.wait_output("\n").split()[1])
        os.kill(child, signal.SIGSTOP)
        assert _runs(child)
    wait_until(lambda: not _runs(child), "the end of the child")


def test_a_vain_wait_tells_the_state_and_the_output() -> None:
    """The error names the process, its exit code and its last words."""
    with ActorProcess.python("-c", "raise SystemExit('no such agent')", name="worker-1") as actor:
        actor.wait_exit()
        with pytest.raises(TimeoutError, match=r"worker-1 \(exited with 1\): output 'ready'.*\nno such agent"):
            actor.wait_output("ready", timeout_s=0.01)


def test_a_closed_process_says_so() -> None:
    """Use outside the block is an error that tells what to do."""
    actor = _ticker()
    with pytest.raises(RuntimeError, match="inside the with block"):
        actor.kill()


async def test_wait_for_returns_what_the_predicate_returned() -> None:
    """Plain and async predicates are polled until true and their value is handed on."""
    plain, awaited = iter([0, 0, 7]), iter(["", "done"])

    async def ask() -> str:
        return next(awaited)

    assert await wait_for(lambda: next(plain), "seven") == 7
    assert await wait_for(ask, "done") == "done"
    with pytest.raises(TimeoutError, match=r"waited 0.01 s in vain for: a wonder"):
        await wait_for(lambda: False, lambda: "a wonder", timeout_s=0.01)
