"""Translates errors of Redis and redis-py into the project's errors."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions as redis_errors

from orchestrator.core.errors import ServerFull, ServerRefused, ServerUnavailable, StoreError


class ScriptMissing(StoreError):
    """The server lost the script (restart, SCRIPT FLUSH, promotion). The store loads it and repeats the call."""


class GroupMissing(StoreError):
    """The stream or its consumer group does not exist. The caller creates it again."""


class ReplyTooLarge(StoreError):
    """The reply exceeds the reader's limit and was discarded."""


_TRY_LATER: Final = {
    "LOADING": "is loading its data",
    "BUSY": "is busy with a long script",
    "ASK": "is moving this slot",
    "TRYAGAIN": "is moving this slot",
    "CLUSTERDOWN": "has no complete cluster",
    "MASTERDOWN": "has lost its master",
    "READONLY": "is a replica and takes no writes",
    "NOREPLICAS": "has too few replicas to accept a write",
    "UNBLOCKED": "changed its role during a blocking read",
}
_REPLICA: Final = ("READONLY", "MASTERDOWN")
_WITHOUT_CODE: Final = {
    redis_errors.AskError: "ASK",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ReadOnlyError: "READONLY",
}
"""Errors of redis-py that lack the code of the reply."""
_IN_SCRIPT: Final = re.compile(r"script: [0-9a-f]{40}, on ")
"""What Redis adds to the error of a command in a script. Redis does not undo what the script changed before."""
_FULL: Final = {
    "OOM": "is out of memory; raise maxmemory or remove data",
    "MISCONF": "cannot write to its disk; free some space, then it accepts writes again",
}


def is_from_replica(error: BaseException) -> bool:
    """Return whether an error reply shows that the server is a replica, for example a demoted master."""
    if isinstance(error, redis_errors.ReadOnlyError | redis_errors.MasterDownError):
        return True
    return str(error).startswith(_REPLICA)


def translate(error: BaseException, *, what: str, sent: bool) -> StoreError:
    """Translate an exception of redis-py or an error reply.

    Args:
        error: the exception.
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
    code = _WITHOUT_CODE.get(type(error)) or text.partition(" ")[0]
    # redis-py strips the code from errors that have a class of their own.
    if isinstance(error, redis_errors.NoScriptError) or code == "NOSCRIPT":
        return ScriptMissing(what)
    if isinstance(error, redis_errors.OutOfMemoryError) or code == "OOM":
        return ServerFull(f"{what} was refused: Redis {_FULL['OOM']}")
    if code == "NOGROUP":
        return GroupMissing(f"{what}: {text}")
    if code in _FULL:
        return ServerFull(f"{what} was refused: Redis {_FULL[code]}")
    if code in _TRY_LATER:
        return ServerUnavailable(f"{what} was not run: Redis {_TRY_LATER[code]}; try again")
    if "non local key" in text:
        return ServerUnavailable(
            f"{what} was interrupted: Redis {_TRY_LATER['TRYAGAIN']}; try again", outcome_unknown=True
        )
    return ServerRefused(f"Redis refused {what}: {text}", outcome_unknown=_IN_SCRIPT.search(text) is not None)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
