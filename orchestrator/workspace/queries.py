"""Reads workspaces, without a lock."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.ids import encode_foreign
from orchestrator.core.reading import read_json, read_readable, read_text, read_whole, reads_stored
from orchestrator.store.keys import CHANGES, DIRECTORY, DOCUMENT, MACHINES, META, PARTS
from orchestrator.store.paging import split_command
from orchestrator.workspace import scripts
from orchestrator.workspace.model import AgentEntry, Directive, LogEntry, Snapshot, StateEntry, Versioned, WorkspaceSize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore


async def read_paths(scope: ScopedStore, part: str, paths: Sequence[str]) -> dict[str, Versioned]:
    """Return these paths of a document or scratch, or all paths. Missing paths are left out."""
    key = scope.keys.key(part)
    if paths:
        found = zip(paths, await _read_fields(scope, key, paths), strict=True)
        return {path: parse_versioned(stored) for path, stored in found if stored is not None}
    return _paths(await scope.read("HGETALL", key))


async def _read_fields(scope: ScopedStore, key: str, fields: Sequence[str]) -> list[Any]:
    commands = split_command(("HMGET", key), fields)
    if len(commands) == 1:
        return list(await scope.read(*commands[0]))
    # At one moment, as by one command.
    return list(chain.from_iterable((await scope.read_many([("MULTI",), *commands, ("EXEC",)]))[-1]))


async def read_last(scope: ScopedStore, log: str, count: int) -> list[LogEntry]:
    """Return the last entries of a log, oldest first."""
    found = await scope.read("LRANGE", scope.keys.key(scope.keys.log_part(log)), -count, -1)
    return [parse_log_entry(entry) for entry in found]


async def read_after(scope: ScopedStore, log: str, after: int, count: int) -> list[LogEntry]:
    """Return entries of a log after a number, oldest first."""
    call = scripts.tail(scope.keys, log=encode_foreign("log", log), after=after, limit=count)
    return [parse_log_entry(entry) for entry in await scope.call(call)]


async def read_members(scope: ScopedStore, name: str) -> frozenset[str]:
    """Return the members of a set."""
    return _members(await scope.read("SMEMBERS", scope.keys.key(scope.keys.set_part(name))))


async def read_states(scope: ScopedStore, ids: Sequence[str]) -> dict[str, StateEntry]:
    """Return these state machines, or all of them. Missing ones are left out."""
    key = scope.keys.key(MACHINES)
    if ids:
        found = zip(ids, await _read_fields(scope, key, ids), strict=True)
        return {id_: parse_state(stored) for id_, stored in found if stored is not None}
    return _states(await scope.read("HGETALL", key))


async def read_agents(scope: ScopedStore) -> list[AgentEntry]:
    """Return the agents whose lease in the directory has not ended."""
    found = await scope.call(scripts.present(scope.keys))
    return [AgentEntry(name, read_json(text), left_ms / 1000) for name, left_ms, text in found]


async def read_directives(scope: ScopedStore, agent: str, after: str, count: int) -> list[Directive]:
    """Return the directives in an agent's inbox after an id."""
    found = await scope.read(
        "XRANGE", scope.keys.key(scope.keys.directives_part(agent)), f"({after}", "+", "COUNT", count
    )
    return [parse_directive(entry, fields) for entry, fields in found]


def parse_directive(entry: bytes, flat: Sequence[bytes]) -> Directive:
    """Decode one entry of an inbox."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    id_ = read_text(entry)
    return Directive(id_, read_text(fields[b"k"]), read_json(fields[b"d"]), read_text(fields[b"a"]), entry_time(id_))


def entry_time(entry: str) -> datetime:
    """Return the time that is part of a stream entry's id."""
    return from_instant_ms(read_whole(entry.partition("-")[0]))


async def read_snapshot(scope: ScopedStore) -> Snapshot:
    """Read the workspace in one transaction."""
    parts, keys = list[str](), scope.keys
    while True:
        # The first round reads the names of logs and sets. A name that appears meanwhile needs another round.
        commands: list[Sequence[Argument]] = [
            ("MULTI",),
            ("HGET", scope.keys.key(META), "rev"),
            ("HKEYS", scope.keys.key(PARTS)),
            ("HGETALL", scope.keys.key(DOCUMENT)),
            ("HGETALL", scope.keys.key(MACHINES)),
            ("XREVRANGE", scope.keys.key(CHANGES), "+", "-", "COUNT", 1),
            *[
                ("LRANGE", keys.key(part), 0, -1) if keys.parse_part(part)[0] == "log" else ("SMEMBERS", keys.key(part))
                for part in parts
            ],
            ("EXEC",),
        ]
        replies = await scope.read_many(commands)
        revision, names, paths, states, events, *contents = replies[-1]
        shared = sorted(part for name in names if keys.parse_part(part := read_text(name))[0] != "other")
        if shared == parts:
            break
        parts = shared
    by_part = [(*keys.parse_part(part), content) for part, content in zip(parts, contents, strict=True) if content]
    return Snapshot(
        revision=read_whole(revision),
        paths=_paths(paths),
        logs={name: tuple(read_readable(parse_log_entry, content)) for kind, name, content in by_part if kind == "log"},
        sets={name: _members(content) for kind, name, content in by_part if kind == "set"},
        states=_states(states),
        event=read_text(events[0][0]) if events else "0-0",
    )


async def read_size(scope: ScopedStore) -> WorkspaceSize | None:
    """Return the size of the workspace; None if nothing is shared in it, as after `clear`."""
    events_key = scope.keys.key(CHANGES)
    meta, parts, agents, events, last = await scope.read_many(
        [
            ("HMGET", scope.keys.key(META), "rev", "items", "bytes", "dies"),
            ("HLEN", scope.keys.key(PARTS)),
            ("ZCARD", scope.keys.key(DIRECTORY)),
            ("XLEN", events_key),
            ("XREVRANGE", events_key, "+", "-", "COUNT", 1),
        ]
    )
    revision, items, size, dies_ms = [read_whole(number) for number in meta]
    # The event of `clear` tells nothing of what was there.
    if not items and not parts and not agents and events <= 1:
        return None
    changed_at = entry_time(read_text(last[0][0])) if last else None
    return WorkspaceSize(revision, items, size, events, changed_at, from_instant_ms(dies_ms))


def _paths(flat: Sequence[bytes]) -> dict[str, Versioned]:
    return dict(read_readable(_named_path, zip(flat[::2], flat[1::2], strict=True)))


def _named_path(pair: tuple[bytes, bytes]) -> tuple[str, Versioned]:
    return read_text(pair[0]), parse_versioned(pair[1])


@reads_stored
def parse_versioned(stored: bytes) -> Versioned:
    """Decode a stored path."""
    version, agent, text = stored.split(b" ", 2)
    return Versioned(read_json(text), read_whole(version), read_text(agent))


@reads_stored
def parse_log_entry(stored: bytes) -> LogEntry:
    """Decode a stored entry of a log."""
    number, at_ms, agent, text = stored.split(b" ", 3)
    return LogEntry(read_whole(number), read_json(text), read_text(agent), from_instant_ms(read_whole(at_ms)))


def _states(flat: Sequence[bytes]) -> dict[str, StateEntry]:
    return dict(read_readable(_named_state, zip(flat[::2], flat[1::2], strict=True)))


def _named_state(pair: tuple[bytes, bytes]) -> tuple[str, StateEntry]:
    return read_text(pair[0]), parse_state(pair[1])


@reads_stored
def parse_state(stored: bytes) -> StateEntry:
    """Decode a stored state machine."""
    version, agent, state, text = stored.split(b" ", 3)
    return StateEntry(read_text(state), read_json(text), read_whole(version), read_text(agent))


def _members(reply: Sequence[Any]) -> frozenset[str]:
    return frozenset(read_text(member) for member in reply)
