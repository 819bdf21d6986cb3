"""One table from what Redis and its client say to what our callers can act on."""

from __future__ import annotations

from typing import Final

from redis import exceptions as redis_errors

from orchestrator.core.errors import ServerFull, ServerRefused, ServerUnavailable, StoreError


class ScriptMissing(StoreError):
    """The server does not know a script (restart, SCRIPT FLUSH, promotion): load and repeat. Never leaves the store."""


class GroupMissing(StoreError):
    """A stream or its consumer group is gone: make it again."""


class ReplyTooLarge(StoreError):
    """A reply is larger than its reader wants to keep; it was given up."""


_TRY_LATER: Final = {
    "LOADING": "is loading its data",
    "BUSY": "is busy with a long script",
    "TRYAGAIN": "is moving this slot",
    "CLUSTERDOWN": "has no complete cluster",
    "MASTERDOWN": "has lost its master",
    "READONLY": "is a replica and takes no writes",
    "NOREPLICAS": "has too few replicas to accept a write",
    "UNBLOCKED": "changed its role during a blocking read",
}
_FULL: Final = {
    "OOM": "is out of memory; raise maxmemory or remove data",
    "MISCONF": "cannot write to its disk; free some space, then it accepts writes again",
}


def translate(error: BaseException, *, what: str, sent: bool) -> StoreError:
    """Say what an exception of the Redis client means.

    Args:
        error: what was raised.
        what: the command or script, for the message.
        sent: whether the command may have reached the server.
    """
    if isinstance(error, redis_errors.AuthenticationError):
        return ServerRefused(f"Redis refused the login ({_line(error)}); check user and password in redis.url")
    if isinstance(error, redis_errors.BusyLoadingError):
        return ServerUnavailable(f"{what} was not run: Redis is loading its data; try again")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return ServerUnavailable(f"{what}: no answer from Redis ({_line(error)})", outcome_unknown=sent)
    return _translate_reply(error, what)


def _translate_reply(error: BaseException, what: str) -> StoreError:
    text = _line(error)
    code = text.partition(" ")[0]
    # redis-py strips the code from the errors that it has a class for.
    if isinstance(error, redis_errors.NoScriptError) or code == "NOSCRIPT":
        return ScriptMissing(what)
    if isinstance(error, redis_errors.OutOfMemoryError) or code == "OOM":
        return ServerFull(f"{what} was refused: Redis {_FULL['OOM']}")
    if isinstance(error, redis_errors.ReadOnlyError):
        return ServerUnavailable(f"{what} was not run: Redis {_TRY_LATER['READONLY']}; try again")
    if code == "NOGROUP":
        return GroupMissing(f"{what}: {text}")
    if code in _FULL:
        return ServerFull(f"{what} was refused: Redis {_FULL[code]}")
    if code in _TRY_LATER:
        return ServerUnavailable(f"{what} was not run: Redis {_TRY_LATER[code]}; try again")
    if "non local key" in text:
        return ServerUnavailable(f"{what} was interrupted: {_TRY_LATER['TRYAGAIN']}; try again", outcome_unknown=True)
    return ServerRefused(f"Redis refused {what}: {text}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
