"""Wraps the scripts in `lua/agents/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.agents.timings import MAX_NAMES
from orchestrator.core.errors import ConfigError
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, program_version, read_floor
from orchestrator.core.reading import read_text
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.agents.model import AgentSpec
    from orchestrator.store.keys import PoolKeys


def register(
    keys: PoolKeys,
    *,
    worker: str,
    spec: AgentSpec,
    slots: int,
    backlog: int,
    about: Mapping[str, str | int],
    alive_s: int,
    now_us: str = "",
) -> Call[None]:
    """Register a worker for one agent; a draining worker has 0 slots."""

    def parse(reply: list[bytes]) -> None:
        if reply[0] == b"unknown_limit":
            name = read_text(reply[1])
            raise ConfigError(
                f"agent {spec.name!r} asks for limit {name!r}, which is not defined; "
                f'add it to the settings, for example [limits] "{name}" = "60/min"'
            )

    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "agent": spec.name,
        "slots": slots,
        "backlog": str(backlog),
        "skills": " ".join(sorted(spec.skills)),
        "limits": " ".join(spec.limit_names),
        "definitions": pack_rows([(name, rate.count, rate.window_us) for name, rate in spec.definitions.items()]),
        "lease_ms": str(spec.lease_ms),
        "about": pack_rows([(name, str(value)) for name, value in about.items()]),
        "alive_s": alive_s,
        "terms": " ".join(f"{skill}={of.max_attempts}/{of.max_deaths}" for skill, of in sorted(spec.terms.items())),
        "versions": pack_rows(
            [
                (skill, version.digest, " ".join([*version.required, *(f"{name}?" for name in version.optional)]))
                for skill, version in sorted(spec.versions.items())
            ]
        ),
        "redacted": " ".join(sorted(spec.redacted)),
        "funds": "\n".join(
            " ".join([skill, amounts.packed, *names]) for skill, (amounts, names) in sorted(spec.funds.items())
        ),
        "now_arg": now_us,
    }
    return Call("agents/register", args, parse)


class HeartbeatReply(NamedTuple):
    """Reply of `heartbeat`.

    Attributes:
        known: whether the registry lists the worker.
        complete: whether each of its agents is registered.
        seq: sequence number of the desired state.
        floor: the lowest format that the pool admits, or None if Redis has lost it.
        again: nothing is recorded, because one of the `others` is not registered as it should be.
        refused: the leader refuses the registration of the worker; the heartbeat is recorded.
    """

    known: bool
    complete: bool
    seq: str
    floor: int | None
    again: bool
    refused: bool = False


def heartbeat(
    keys: PoolKeys,
    *,
    worker: str,
    backlogs: Sequence[tuple[str, int]],
    others: Sequence[str] = (),
    limits: Sequence[str] = (),
    alive_s: int,
    blocked: str = "",
    now_us: str = "",
) -> Call[HeartbeatReply]:
    """Send a heartbeat; an unknown worker must register again.

    Args:
        keys: of the pool.
        worker: its id.
        backlogs: up to 50 agents whose registrations are checked in full, with the requested backlogs.
        others: up to 1,000 agents whose backlogs have not changed.
        limits: names of the limits of the others.
        alive_s: lifetime of the registration without a heartbeat.
        blocked: how the event loop of the worker was blocked, as `SECONDS COUNT PLACE`; empty if that is known.
        now_us: overrides the clock of the server.
    """
    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "rows": pack_rows([(agent, str(backlog)) for agent, backlog in backlogs]),
        "others": " ".join(others),
        "limits": " ".join(limits),
        "alive_s": alive_s,
        "blocked": blocked,
        "now_arg": now_us,
    }

    def parse(reply: list[bytes]) -> HeartbeatReply:
        status, seq, floor = reply
        return HeartbeatReply(
            known=status != b"unknown",
            complete=status in {b"ok", b"refused"},
            seq=read_text(seq),
            floor=read_floor(floor),
            again=status == b"check",
            refused=status == b"refused",
        )

    return Call("agents/heartbeat", args, parse)


class CountReply(NamedTuple):
    """Reply of `count`: whether the worker is registered, and the time of the server."""

    known: bool
    now_ms: int


def count(
    keys: PoolKeys, *, worker: str, batch: int, rows: Sequence[tuple[str, str, Sequence[int]]], now_us: str = ""
) -> Call[CountReply]:
    """Add counts of ended attempts, as flat lists of cells and numbers per agent and skill (`agents/timings.py`)."""
    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "batch": str(batch),
        "rows": pack_rows(rows),
        "most": MAX_NAMES,
        "now_arg": now_us,
    }
    return Call("agents/count", args, lambda reply: CountReply(reply[0] == b"ok", reply[1]))


def describe(keys: PoolKeys, *, rows: Sequence[tuple[str, str, bytes, bool]], now_us: str = "") -> Call[bool]:
    """Store descriptions of skills; rows are (skill, digest of its version, encoded description, redacted)."""
    packed = pack_rows([(skill, digest, opaque(text), int(redact)) for skill, digest, text, redact in rows])
    return Call("agents/describe", {"pool": keys.root, "rows": packed, "now_arg": now_us}, bool)


def deregister(keys: PoolKeys, *, worker: str, now_us: str = "") -> Call[None]:
    """Remove a worker from the registry."""
    return Call("agents/deregister", {"pool": keys.root, "worker": worker, "now_arg": now_us}, lambda _: None)


def refuse(keys: PoolKeys, *, worker: str, now_us: str = "") -> Call[bool]:
    """Count a worker's slots as 0 from now on and let its heartbeats tell it; return False if it was refused before."""
    args: Arguments = {"pool": keys.root, "worker": worker, "now_arg": now_us}
    return Call("agents/refuse", args, lambda reply: reply[0] == b"ok")


def expire(keys: PoolKeys, *, alive_s: int, limit: int, now_us: str = "") -> Call[list[str]]:
    """Remove unused agents and workers without heartbeats, and return the removed workers."""
    args: Arguments = {"pool": keys.root, "alive_s": alive_s, "limit": limit, "now_arg": now_us}
    return Call("agents/expire", args, lambda reply: [read_text(worker) for worker in reply])


def relist(keys: PoolKeys, *, agents: Sequence[str]) -> Call[list[str]]:
    """List agents among those that may have room; return those to call `assign` for."""
    args: Arguments = {"pool": keys.root, "rows": pack_rows([(agent,) for agent in agents])}
    return Call("agents/relist", args, lambda reply: [read_text(agent) for agent in reply])


def repair(
    keys: PoolKeys, *, rows: Sequence[tuple[str, str]], repair: bool, limit: int = 500, now_us: str = ""
) -> Call[list[tuple[int, str, bool]]]:
    """Check the consistency of the registry; rows are (agent or skill, its name).

    Returns (index of the row, code, whether repaired).
    """

    def parse(reply: list[Any]) -> list[tuple[int, str, bool]]:
        found = zip(*[iter(reply)] * 3, strict=True)
        return [(row - 1, read_text(code), bool(repaired)) for row, code, repaired in found]

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(rows),
        "repair": "1" if repair else "0",
        "limit": limit,
        "now_arg": now_us,
    }
    return Call("agents/repair", args, parse)


class LeadReply(NamedTuple):
    """Reply of `lead`.

    Attributes:
        leads: False if another supervisor holds the lease.
        floor: the lowest format that the pool admits.
        stored_last: number of the supervisor's last request that Redis knew; below the number that the supervisor knew
            if Redis has lost writes. 0 while a key has a wrong type.
        request: number of this request; 0 while a key has a wrong type.
        submitted: number of tasks that were submitted since the beginning.
        now_ms: time of the server.
    """

    leads: bool
    floor: int | None
    stored_last: int
    request: int
    submitted: int
    now_ms: int


def lead(
    keys: PoolKeys,
    *,
    supervisor: str,
    lease_ms: int,
    floor: int = OLDEST_FORMAT,
    last: int = 0,
    key: str = "",
    now_us: str = "",
) -> Call[LeadReply]:
    """Acquire or renew the leader lease, and list the supervisor among those that run.

    Args:
        keys: of the pool.
        supervisor: its id.
        lease_ms: duration of the lease; 0: only list the supervisor.
        floor: the highest floor of the pool that the supervisor has seen; the script stores it if Redis has lost it.
        last: the `request` of the last reply to this supervisor; 0 if there was none.
        key: name of the secret that it signs with.
        now_us: test override.
    """
    args: Arguments = {
        "pool": keys.root,
        "id": supervisor,
        "lease_ms": lease_ms,
        "format": FORMAT,
        "version": program_version(),
        "known": floor,
        "last": last,
        "key": key,
        "now_arg": now_us,
    }
    return Call("agents/lead", args, lambda reply: LeadReply(bool(reply[0]), read_floor(reply[1]), *reply[2:]))


def raise_floor(keys: PoolKeys, *, format_: int) -> Call[int | None]:
    """Raise the lowest format that the pool admits, and return it."""
    return Call("agents/raise_floor", {"pool": keys.root, "format": format_}, read_floor)


def resign(keys: PoolKeys, *, supervisor: str) -> Call[bool]:
    """Release the leader lease if it is held."""
    args: Arguments = {"pool": keys.root, "id": supervisor, "format": FORMAT, "version": program_version()}
    return Call("agents/resign", args, bool)
