"""Replaces bytes in all keys of a prefix, in names and contents, as somebody with access to Redis may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


def replace_in_keys(client: redis.Redis, prefix: str, old: bytes, new: bytes) -> int:
    """Write `new`, which is as long as `old`, in its place; return the number of keys that had it."""
    assert len(old) == len(new)
    connected: Any = client
    changed = 0
    for key in sorted(connected.scan_iter(f"{prefix}:*")):
        kind = connected.type(key)
        if kind == b"none":  # it has expired meanwhile
            continue
        changed += _REPLACERS[kind](connected, key, old, new) or old in key
        if old in key and connected.exists(key):
            connected.rename(key, key.replace(old, new))
    return changed


def _in_string(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    value = client.get(key)
    client.set(key, value.replace(old, new), keepttl=True, xx=True)
    return old in value


def _in_hash(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    found = {name: value for name, value in client.hgetall(key).items() if old in name + value}
    for name, value in found.items():
        client.hset(key, name.replace(old, new), value.replace(old, new))
        if old in name:
            client.hdel(key, name)
    return bool(found)


def _in_set(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    found = [member for member in client.smembers(key) if old in member]
    for member in found:
        client.sadd(key, member.replace(old, new))
        client.srem(key, member)
    return bool(found)


def _in_sorted_set(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    found = [(member, score) for member, score in client.zrange(key, 0, -1, withscores=True) if old in member]
    for member, score in found:
        client.zadd(key, {member.replace(old, new): score})
        client.zrem(key, member)
    return bool(found)


def _in_list(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    values = client.lrange(key, 0, -1)
    for at, value in enumerate(values):
        client.lset(key, at, value.replace(old, new))
    return any(old in value for value in values)


def _in_stream(client: Any, key: bytes, old: bytes, new: bytes) -> bool:
    """Replace in entries; the groups of the stream go."""
    entries, ttl_ms = client.xrange(key), client.pttl(key)
    if old not in repr(entries).encode():
        return False
    client.delete(key)
    for entry, fields in entries:
        client.xadd(key, {name.replace(old, new): value.replace(old, new) for name, value in fields.items()}, id=entry)
    if ttl_ms > 0:
        client.pexpire(key, ttl_ms)
    return True


_REPLACERS = {
    b"string": _in_string, b"hash": _in_hash, b"set": _in_set, b"zset": _in_sorted_set, b"list": _in_list,
    b"stream": _in_stream,
}  # fmt: skip
