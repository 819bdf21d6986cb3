"""Libraries that keep the history of a chat in Redis, each measured in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.peer import InstalledHistory, MissingPeer, Package
from benchmarks.peers.environment import PeerMissingError, environment_of
from benchmarks.processes import ROOT, ChildFailedError
from orchestrator.embedded.server_binary import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HISTORIES = {name: Package(name=name) for name in ("openai-agents", "langchain-redis")}
_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class HistoryPass:
    """One pass of a library.

    Attributes:
        appends: messages per second of fifty writers of one history; 0 if the library is not measured so.
    """

    read_p50_ms: float
    read_p99_ms: float
    appends: float


def install_histories(names: Iterable[str]) -> tuple[list[InstalledHistory], list[MissingPeer]]:
    """Create the missing environments; returns the installed libraries, and the missing ones with reasons."""
    installed: list[InstalledHistory] = []
    missing: list[MissingPeer] = []
    for name in names:
        try:
            installed.append(InstalledHistory(HISTORIES[name], environment_of(HISTORIES[name])))
        except PeerMissingError as error:
            missing.append(MissingPeer(name, str(error)))
    return installed, missing


def history_pass(one: InstalledHistory, url: str, message: Mapping[str, Any], stored: int) -> HistoryPass:
    """Measure a library in a process of its environment.

    Raises:
        ChildFailedError: the process failed.
    """
    program = str(find_server_binary().path)
    command = [str(one.python), "-m", "benchmarks.peers.history_client", one.package.name, url, str(stored), program]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(message), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ChildFailedError(f"{one.package.name}: {done.stderr.strip()[-500:]}")
    return HistoryPass(**json.loads(done.stdout.splitlines()[-1]))
