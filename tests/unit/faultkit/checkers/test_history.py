"""Histories survive the death of whoever wrote them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.faultkit.checkers.history import Recorder, SubmitAccepted, SubmitStarted, read_history

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """All events in their order, with who wrote them."""
    recorder = Recorder(tmp_path, "client")
    recorder.write(SubmitStarted("one", key="k"))
    recorder.write(SubmitAccepted("one", "t1"))
    recorder.close()
    history = read_history(tmp_path)
    assert [line.event for line in history.lines] == [SubmitStarted("one", key="k"), SubmitAccepted("one", "t1")]
    assert {line.actor for line in history.lines} == {f"client-{os.getpid()}"}
    assert history.of(SubmitAccepted) == [SubmitAccepted("one", "t1")]


def test_a_torn_last_line_is_dropped_and_no_other(tmp_path: Path) -> None:
    """Death tears the last line at most; anything else that cannot be read is an error."""
    recorder = Recorder(tmp_path, "client")
    recorder.write(SubmitStarted("one"))
    recorder.write(SubmitStarted("two"))
    recorder.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_history(tmp_path).of(SubmitStarted) == [SubmitStarted("one")]
    path.write_bytes(whole[5:])
    with pytest.raises(ValueError, match=r"line 1 of .*client"):
        read_history(tmp_path)


def test_forked_and_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Each process has a file of its own, also behind a fork, and what `write` returned from survives kill -9."""
    program = """
        import os, signal, sys
        from tests.faultkit.checkers.history import Recorder, SubmitStarted
        recorder = Recorder(sys.argv[1], "forks")
        recorder.write(SubmitStarted("parent"))
        for child in range(3):
            if os.fork() == 0:
                for number in range(200):
                    recorder.write(SubmitStarted(f"{child}.{number}"))
                os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(3):
            os.wait()
        recorder.write(SubmitStarted("parent again"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True)
    ops = [one.op for one in read_history(tmp_path).of(SubmitStarted)]
    assert sorted(ops) == sorted(
        ["parent", "parent again", *(f"{child}.{number}" for child in range(3) for number in range(200))]
    )
    assert len(list(tmp_path.iterdir())) == 4
