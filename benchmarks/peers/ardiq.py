"""The fastest peer as a system that can be measured: its own worker processes, its own client in a process."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.processes import ROOT, Child, ChildFailedError, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks.harness import Bench

REQUIREMENT = "ardiq==1.2.0"
_APP = "benchmarks.peers.ardiq_app"
_STREAM = "ardiq:default:queues:default"


@dataclass(frozen=True, slots=True)
class Ardiq:
    """Runs the peer with the interpreter of its environment."""

    bench: Bench
    python: Path

    def ask_client(self, kind: str, count: int) -> Any:
        """Run one client pass in a process of its own and return what it measured."""
        command = [str(self.python), "-m", _APP, kind, str(count)]
        finished = subprocess.run(command, env=dict(self._env()), cwd=ROOT, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise ChildFailedError(f"ardiq's client failed: {finished.stderr.strip()[-500:]}")
        return json.loads(finished.stdout)

    @contextlib.contextmanager
    def workers(self, processes: int) -> Iterator[list[Child]]:
        """Run worker processes, which begin at once."""
        arguments = ["ardiq", "run", f"{_APP}:app"]
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(
                    running(
                        f"ardiq-{number}", arguments, folder=self.bench.folder, env=self._env(), python=str(self.python)
                    )
                )
                for number in range(processes)
            ]

    def remaining(self) -> int:
        """Count the entries of the stream; finished ones are deleted."""
        return self.bench.meter.xlen(_STREAM)

    def _env(self) -> Mapping[str, str]:
        return {"BENCH_REDIS_URL": self.bench.server.url}
