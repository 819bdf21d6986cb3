"""Lists every Redis command that the program sends or that its scripts call, in a form that can be dry-run.

Tests compare this table with the scripts, and run a whole team as a user with these rights alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.store.keys import VECTOR_SET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.durability import Level
    from orchestrator.store.keys import PoolKeys

SENT: Final = (
    "PING",
    "INFO",
    "TIME",
    "CLIENT SETNAME probe",
    "CLIENT ID",
    "CLIENT UNBLOCK 0",
    "COMMAND INFO PING",
    "SCRIPT EXISTS 0",
    "SCRIPT LOAD return",
    "EVALSHA 0 1 ROOT",
    "BLPOP KEY 1",
    "RPOP KEY",
    "EXISTS KEY",
    "GET KEY",
    "GET SCOPE",
    "GETDEL KEY",
    "SET KEY 1",
    "SCAN 0",
    "SMEMBERS KEY",
    "SSCAN KEY 0",
    "SUNION KEY",
    "EXPIRE KEY 1",
    "HSETNX KEY f v",
    "OBJECT ENCODING KEY",
    "HGET KEY f",
    "HGETALL KEY",
    "HKEYS KEY",
    "HMGET KEY f",
    "HRANDFIELD KEY 1",
    "HSCAN KEY 0",
    "MGET KEY",
    "LINDEX KEY 0",
    "LRANGE KEY 0 -1",
    "LRANGE KEY 0 1",
    "XLEN KEY",
    "XPENDING KEY g",
    "XRANGE KEY - +",
    "XREAD STREAMS KEY 0",
    "XREADGROUP GROUP g c STREAMS KEY >",
    "XREVRANGE KEY + -",
    "ZCARD KEY",
    "ZMSCORE KEY m",
    "ZRANDMEMBER KEY 1",
    "ZRANGE KEY 0 -1",
    "ZREVRANK KEY m",
    "ZSCAN KEY 0",
    "ZSCORE KEY m",
)
CALLED: Final = (
    "DEL KEY",
    "HDEL KEY f",
    "HEXISTS KEY f",
    "HINCRBY KEY f 1",
    "HLEN KEY",
    "HRANDFIELD KEY 1",
    "HSET KEY f v",
    "HSTRLEN KEY f",
    "HVALS KEY",
    "LLEN KEY",
    "LPUSH KEY v",
    "LREM KEY 1 v",
    "LSET KEY 0 v",
    "LTRIM KEY 0 -1",
    "PEXPIRE KEY 1",
    "PEXPIREAT KEY 1",
    "PEXPIRETIME KEY",
    "PTTL KEY",
    "RENAME KEY KEY",
    "RPUSH KEY v",
    "SADD KEY m",
    "SCARD KEY",
    "SISMEMBER KEY m",
    "SMISMEMBER KEY m",
    "SPOP KEY 1",
    "SRANDMEMBER KEY 1",
    "SREM KEY m",
    "TTL KEY",
    "TYPE KEY",
    "UNLINK KEY",
    "XACK KEY g 0-1",
    "XACKDEL KEY g IDS 1 0-1",
    "XADD KEY * f v",
    "XCLAIM KEY g c 0 0-1",
    "XDEL KEY 0-1",
    "XGROUP CREATE KEY g 0",
    "XGROUP DELCONSUMER KEY g c",
    "XINFO CONSUMERS KEY g",
    "XINFO GROUPS KEY",
    "XINFO STREAM KEY",
    "XTRIM KEY MINID 0",
    "ZADD KEY 0 m",
    "ZCOUNT KEY 0 1",
    "ZINCRBY KEY 1 m",
    "ZRANGEBYSCORE KEY 0 1",
    "ZRANK KEY m",
    "ZREM KEY m",
    "ZREMRANGEBYSCORE KEY 0 1",
)
"""Commands that only scripts call."""
VECTORS: Final = (
    "VADD KEY VALUES 1 1 m",
    "VREM KEY m",
    "VSIM KEY VALUES 1 1",
    "VCARD KEY",
    "VDIM KEY",
    "VRANDMEMBER KEY",
    "VEMB KEY m",
    "VGETATTR KEY m",
    "VSETATTR KEY m {}",
)
"""Commands of vector sets (Redis 8.0), sent where the server has them: without them memories search in another way."""
HINTS: Final = ("SPUBLISH KEY m", "SSUBSCRIBE KEY", "SUNSUBSCRIBE KEY")
"""Optional commands: without them, followers of a task receive its output later. The channel is named like a key."""
DURABLE: Final[Mapping[Level, Sequence[str]]] = {
    "default": (),
    "fsync": ("WAITAOF 1 0 1",),
    "replicated": ("WAIT 1 1",),
}
"""Further commands of submits with a level of durability."""

TRANSACTION: Final = ("MULTI", "EXEC", "DISCARD")
"""Sent around other commands, so that a dry run cannot have them in its own transaction."""
LOGIN: Final = ("ROLE",)
"""Sent by each new connection to the master of a Sentinel group."""
DURABILITY: Final = ("WAIT 0 0", "WAITAOF 0 0 0")
"""Sent behind the submits of tasks whose durability is not the default."""
LOCATING: Final = ("CLUSTER SLOTS",)
"""Sent to nodes of a cluster; without it each slot is learned from a MOVED reply."""
INSPECTION: Final = (
    "ACL WHOAMI",
    "ACL DRYRUN user PING",
    "CLIENT LIST",
    "MEMORY USAGE KEY",
    "READONLY",
    "EVALSHA_RO 0 1 ROOT",
)
"""Commands of `orc doctor`, `orc keys`, `orc upgrade` and `orc backup`, which find less without them, and of views
that are read from replicas."""
READING: Final = frozenset(
    {
        "EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HSTRLEN",
        "HVALS", "LINDEX", "LLEN", "LRANGE", "MGET", "PEXPIRETIME", "PTTL", "SCAN", "SCARD", "SISMEMBER",
        "SMEMBERS", "SMISMEMBER", "SRANDMEMBER", "SSCAN", "SUNION", "TTL", "TYPE", "XINFO", "XLEN", "XPENDING",
        "VCARD", "VDIM", "VEMB", "VGETATTR", "VRANDMEMBER", "VSIM",
        "XRANGE", "XREAD", "XREVRANGE", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYSCORE",
        "ZRANK", "ZREVRANK", "ZSCAN", "ZSCORE",
    }
)  # fmt: skip
"""Commands of the table that read keys and change none."""


def vector_commands(keys: PoolKeys) -> list[list[str]]:
    """Return the commands of vector sets on a key that is not in use."""
    key = keys.scope("agent", "probe").key(VECTOR_SET)
    return [[{"KEY": key}.get(word, word) for word in command.split(" ")] for command in VECTORS]


def used_commands(keys: PoolKeys, *, durability: Level = "default") -> list[list[str]]:
    """Return the commands for one pool, optional ones last, on a key that is not in use."""
    scope = keys.scope("session", "probe")
    words = {"ROOT": keys.root, "KEY": keys.probe, "SCOPE": scope.key("probe")}
    return [
        [words.get(word, word) for word in command.split(" ")]
        for command in (*SENT, *CALLED, *DURABLE[durability], *HINTS)
    ]


def acl_name(command: Sequence[str]) -> str:
    """Return the name of a command in ACL rules: `xgroup|create`, `zadd`."""
    containers = {"ACL", "CLIENT", "CLUSTER", "MEMORY", "OBJECT", "SCRIPT", "XGROUP", "XINFO"}
    return "|".join(command[: 2 if command[0] in containers else 1]).lower()
