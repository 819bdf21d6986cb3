"""Runs scripts on a connection of their own, and waits there until their writes are on disk or at a replica.

WAIT and WAITAOF block their connection and count only writes of this connection. So they follow the scripts in one
pipeline, and the last script must write: after a repeat that finds its work done, the wait would otherwise return at
once and mean nothing (docs/internals/adr/0036).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from orchestrator.core.errors import ConfigError, ServerRefused, ServerUnavailable, StoreError
from orchestrator.core.reading import read_text
from orchestrator.store.failures import Redirected, ScriptMissing
from orchestrator.store.levels import ENOUGH, fsync_refusal
from orchestrator.store.router import MOST_REDIRECTS
from orchestrator.store.script_files import all_scripts
from orchestrator.store.server_info import read_info

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.core.durability import Level
    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.links import Link
    from orchestrator.store.store import Store


class Waited(NamedTuple):
    """Result of a wait.

    Attributes:
        fsyncs: 1 if the server has the writes on its disk.
        replicas: number of replicas that have them.
        missed: by level, why it was not reached.
    """

    fsyncs: int
    replicas: int
    missed: dict[Level, str]


class DurableLink:
    """One connection for durable writes; one pipeline at a time, because each blocks it.

    Args:
        store: its server and time-outs.
        levels: what each pipeline waits for.
        within_s: longest wait for one level.
    """

    def __init__(self, store: Store, levels: Collection[Level], *, within_s: float) -> None:
        self._store, self._levels, self._within_s = store, sorted(levels), within_s
        self._router = store.blocking_link(within_s * len(self._levels), name="durable")
        self._turn = anyio.Lock(fast_acquire=True)
        self._prepared: tuple[Link, int] | None = None
        self._has_waitaof = True

    async def run(self, calls: Sequence[Call[Any]], *, retry_for_s: float) -> tuple[list[Any], Waited]:
        """Run scripts and wait for their writes; the last one must write.

        Args:
            calls: all of one slot, and safe to send twice.
            retry_for_s: how long to repeat the pipeline while Redis does not answer, or has lost the connection.

        Returns:
            For each call its value, or the error with which Redis refused it; and what the wait reached.

        Raises:
            ConfigError: the server cannot reach the level; no script ran.
            StoreError: Redis did not answer.
        """
        async with self._turn:
            return await self._store.repeat(lambda: self._run(calls), retry_for_s=retry_for_s)

    async def _run(self, calls: Sequence[Call[Any]]) -> tuple[list[Any], Waited]:
        replies, waits = await self._send(calls)
        values: list[Any] = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ServerUnavailable):
                raise reply
            values.append(reply if isinstance(reply, StoreError) else call.read(reply))
        return values, self._read(waits)

    async def _send(self, calls: Sequence[Call[Any]]) -> tuple[list[Any], list[Any]]:
        """Send the pipeline to the server that has the slot, with the scripts that it lacks."""
        commands = [call.command() for call in calls]
        scripts: list[Any] = []
        waits: list[Any] = []
        for _ in range(MOST_REDIRECTS):
            link = self._router.link(commands[0])
            if not link.is_open or self._prepared != (link, link.connections):
                await self._check(link)
                await self._load(link, calls)
                self._prepared = link, link.connections
            replies = await link.pipeline([*commands, *self._waits()])
            scripts, waits = replies[: len(commands)], replies[len(commands) :]
            missing = {call.script for call, reply in zip(calls, scripts, strict=True) if _is(reply, ScriptMissing)}
            moved = next((reply for reply in scripts if isinstance(reply, Redirected)), None)
            if missing:
                await link.pipeline([("SCRIPT", "LOAD", all_scripts()[name].text) for name in sorted(missing)])
            elif moved is None or moved.asking:
                break
            else:
                self._router.learn(moved)
        return scripts, waits

    async def _check(self, link: Link) -> None:
        """Refuse a level that the server of a new connection cannot reach.

        Raises:
            ConfigError: it cannot.
        """
        if "fsync" not in self._levels:
            return
        server, persistence, config = await link.pipeline(
            [("INFO", "server"), ("INFO", "persistence"), ("CONFIG", "GET", "appendfsync")]
        )
        for reply in (server, persistence, config):
            if isinstance(reply, ServerUnavailable):
                raise reply
        if not _is(server, StoreError) and not _is(persistence, StoreError):
            info = read_info(read_text(server + persistence))
            appendfsync = None if _is(config, StoreError) else read_text(config[1])
            if refusal := fsync_refusal(info, appendfsync=appendfsync):
                raise ConfigError(refusal)
            self._has_waitaof = info.has_waitaof

    async def _load(self, link: Link, calls: Sequence[Call[Any]]) -> None:
        """Load the scripts that a server lacks, because a pipeline that lacks one is repeated with all its submits."""
        scripts = [all_scripts()[name] for name in sorted({call.script for call in calls})]
        (known,) = await link.pipeline([("SCRIPT", "EXISTS", *[script.sha for script in scripts])])
        if isinstance(known, StoreError):
            return  # the pipeline meets the same, and says so
        missing = [script for script, is_known in zip(scripts, known, strict=True) if not is_known]
        if missing:
            await link.pipeline([("SCRIPT", "LOAD", script.text) for script in missing])

    def _waits(self) -> list[Sequence[Argument]]:
        wait_ms = max(1, round(self._within_s * 1000))
        waits: dict[str, Sequence[Argument]] = {
            # With `appendfsync always` Redis writes to the disk before it replies.
            "fsync": ("WAITAOF", 1, 0, wait_ms) if self._has_waitaof else ("CONFIG", "GET", "append*"),
            "replicated": ("WAIT", ENOUGH, wait_ms),
        }
        return [waits[level] for level in self._levels]

    def _read(self, waits: Sequence[Any]) -> Waited:
        fsyncs = replicas = 0
        missed: dict[Level, str] = {}
        for level, reply in zip(self._levels, waits, strict=True):
            if isinstance(reply, ServerUnavailable):
                # The writes may be gone, for example because the server has become a replica.
                reply.outcome_unknown = True
                raise reply
            if isinstance(reply, ServerRefused):
                missed[level] = str(reply)
            elif level == "replicated":
                replicas = reply
                if replicas < ENOUGH:
                    missed[level] = f"no replica confirmed it within {self._within_s:g} s"
            else:
                fsyncs = reply[0] if self._has_waitaof else _flushes_always(reply)
                if not fsyncs:
                    missed[level] = (
                        f"the server did not write it to its disk within {self._within_s:g} s"
                        if self._has_waitaof
                        else "the server no longer has appendonly yes and appendfsync always"
                    )
        return Waited(fsyncs, replicas, missed)

    async def close(self) -> None:
        """Close the connection."""
        await self._router.close()


def _is(reply: Any, kind: type[BaseException]) -> bool:
    return isinstance(reply, kind)


def _flushes_always(config: Sequence[bytes]) -> int:
    found = dict(zip(config[::2], config[1::2], strict=True))
    return int(found.get(b"appendonly") == b"yes" and found.get(b"appendfsync") == b"always")
