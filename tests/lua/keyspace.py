"""Reads a whole namespace as one value, so that a test can say "nothing changed" and mean all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.store.key_kinds import is_permanent

if TYPE_CHECKING:
    from orchestrator.store.router import SyncRouter


def names(link: SyncRouter, prefix: str) -> list[str]:
    """Every key that begins with `prefix`."""
    found: list[str] = []
    cursor = b"0"
    while True:
        cursor, keys = link.execute("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000)
        found += [key.decode() for key in keys]
        if cursor == b"0":
            return sorted(set(found))


def clear(link: SyncRouter, prefix: str) -> None:
    """Remove every key that begins with `prefix`; each must have a time to live or be listed as permanent."""
    keys = names(link, prefix)
    immortal = [key for key in keys if not is_permanent(key) and link.execute("PTTL", key) == -1]
    assert immortal == [], "keys without a time to live that are not listed as permanent"
    if keys:
        link.execute("UNLINK", *keys)


def snapshot(link: SyncRouter, prefix: str) -> dict[str, Any]:
    """Contents of every key; of a stream also who has what pending, of each key whether it has a time to live."""
    found = {name: (_contents(link, name), link.execute("PTTL", name) >= 0) for name in names(link, prefix)}
    return {name: contents for name, contents in found.items() if contents[0] is not None}


def without_lifetime(link: SyncRouter, prefix: str) -> list[str]:
    """Keys that would stay for ever and are not listed as permanent."""
    return [name for name in names(link, prefix) if link.execute("PTTL", name) == -1 and not is_permanent(name)]


def _contents(link: SyncRouter, name: str) -> Any:
    kind = link.execute("TYPE", name)
    match kind if isinstance(kind, bytes) else kind.encode():
        case b"string":
            return link.execute("GET", name)
        case b"hash":
            flat = link.execute("HGETALL", name)
            return dict(zip(flat[::2], flat[1::2], strict=True))
        case b"zset":
            return link.execute("ZRANGE", name, 0, -1, "WITHSCORES")
        case b"list":
            return link.execute("LRANGE", name, 0, -1)
        case b"set":
            return set(link.execute("SMEMBERS", name))
        case b"stream":
            return _entries(link, name), _pending(link, name)
        case b"vectorset":
            return set(link.execute("VRANDMEMBER", name, link.execute("VCARD", name)))
        case b"none":  # its time was over meanwhile
            return None
        case other:
            raise AssertionError(f"{name} has the unexpected type {other!r}")


def _entries(link: SyncRouter, name: str) -> Any:
    return link.execute("XRANGE", name, "-", "+")


def _pending(link: SyncRouter, name: str) -> Any:
    groups = [dict(zip(group[::2], group[1::2], strict=True)) for group in link.execute("XINFO", "GROUPS", name)]
    # Idle times run on by themselves, so only entry, consumer and delivery count are compared.
    return {
        group[b"name"]: [
            (entry, consumer, count)
            for entry, consumer, _, count in link.execute("XPENDING", name, group[b"name"], "-", "+", 10_000)
        ]
        for group in groups
    }
