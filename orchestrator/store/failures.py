"""Translates errors of Redis and redis-py into the project's errors."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

import redis.exceptions as redis_errors

from orchestrator.core.errors import DamagedData, ServerFull, ServerRefused, ServerUnavailable, StoreError, TlsRefused
from orchestrator.store.tls import ended_early, explain_refusal

if TYPE_CHECKING:
    from orchestrator.store.locator import Address


class ScriptMissing(StoreError):
    """The server lost the script (restart, SCRIPT FLUSH, promotion). The store loads it and repeats the call."""


class GroupMissing(StoreError):
    """The stream or its consumer group does not exist. The caller creates it again."""


class NotHere(ServerUnavailable):
    """A live server answered that another one takes the command, now or soon. The command did not run."""

    # A move of a slot or of the master's role is over in a moment, and one command is little work for a live server.
    retry_within_s = 0.2


class CutOff(NotHere):
    """The server takes no command of its cluster: it misses most of the others, or slots have no master."""


class Redirected(NotHere):
    """Another server has the slot (MOVED), or gets it (ASK). The command did not run; the router follows.

    Attributes:
        slot, host, port: where the reply points to; an empty host is that of the server which answered.
        asking: the slot is being moved, and only this command may follow, after ASKING.
        address: the same place, filled in by the link that got the reply.
    """

    def __init__(self, message: str, *, slot: int, host: str, port: int, asking: bool) -> None:
        super().__init__(message)
        self.slot, self.host, self.port, self.asking = slot, host, port, asking
        self.address: Address | None = None


class ReplyTooLarge(StoreError):
    """The reply exceeds the reader's limit and was discarded."""


ADVICE: Final = "start it, or name the server with --url or ORC_REDIS__URL"
_TRY_LATER: Final = {
    "LOADING": "is loading its data",
    "BUSY": "is busy with a long script",
    "TRYAGAIN": "is moving this slot",
    "CLUSTERDOWN": "has no complete cluster",
    "MASTERDOWN": "has lost its master",
    "READONLY": "is a replica and takes no writes",
    "NOREPLICAS": "has too few replicas to accept a write",
    "UNBLOCKED": "ended a blocking read, because its role or the key changed",
}
_NOT_HERE: Final = frozenset({"CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "UNBLOCKED"})
_REPLICA: Final = ("READONLY", "MASTERDOWN", "UNBLOCKED force unblock")
_REDIRECT: Final = re.compile(r"(MOVED|ASK) (\d+) (.*):(\d+)")
_IN_SCRIPT: Final = re.compile(r"script: (?:[0-9a-f]{40}, )?on @user_script:")
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


def translate(error: BaseException, *, what: str, sent: bool, at: Address) -> StoreError:
    """Translate an exception of redis-py or an error reply.

    Args:
        error: the exception.
        what: the command or script, for the message.
        sent: whether the command may have reached the server.
        at: address of the server, for the message.
    """
    for one in (error, error.__cause__):  # redis-py wraps a refused login at a unix socket
        if isinstance(one, redis_errors.AuthenticationError):
            return ServerRefused(
                f"Redis at {at.public_url} refused the login ({_line(one)}); check user and password in redis.url "
                "(ORC_REDIS__URL)"
            )
    if refusal := explain_refusal(error):
        return TlsRefused(f"{what} was not run: {refusal}")
    if isinstance(error, redis_errors.BusyLoadingError):
        return ServerUnavailable(f"{what} was not run: Redis is loading its data; try again")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        reason = _cause(error)
        if ended_early(error, over_tls=at.public_url.startswith("rediss")):
            reason = "it ended the TLS connection; if it asks programs for a certificate, set redis.tls_cert"
        return ServerUnavailable(
            f"no answer from Redis at {at.public_url} to {what} ({reason}); {ADVICE}", outcome_unknown=sent
        )
    return _translate_reply(error, what)


def _translate_reply(error: BaseException, what: str) -> StoreError:
    text = _line(error)
    # redis-py strips the code from errors that have a class of their own.
    if stripped := getattr(error, "status_code", None):
        text = f"{stripped} {text}"
    code = text.partition(" ")[0]
    if code == "NOSCRIPT":
        return ScriptMissing(what)
    if redirect := _REDIRECT.match(text):
        return _redirected(redirect, what)
    if code == "NOGROUP":
        return GroupMissing(f"{what}: {text}")
    if code == "WRONGTYPE":
        return DamagedData(f"Redis refused {what}: {text}", outcome_unknown=_IN_SCRIPT.search(text) is not None)
    if "'script|load'" in text:
        return ServerUnavailable(
            f"{what} was not run: Redis lacks scripts of this program, and this user may load none; type "
            "`orc upgrade load` as a user who may, such as loader"
        )
    if code in _FULL:
        return ServerFull(f"{what} was refused: Redis {_FULL[code]}")
    if code in _TRY_LATER:
        kind = CutOff if code == "CLUSTERDOWN" else NotHere if code in _NOT_HERE else ServerUnavailable
        return kind(f"{what} was not run: Redis {_TRY_LATER[code]}; try again")
    if "non local key" in text:
        return ServerUnavailable(
            f"{what} was interrupted: Redis {_TRY_LATER['TRYAGAIN']}; try again", outcome_unknown=True
        )
    return ServerRefused(f"Redis refused {what}: {text}", outcome_unknown=_IN_SCRIPT.search(text) is not None)


def _redirected(redirect: re.Match[str], what: str) -> Redirected:
    code, slot, host, port = redirect.groups()
    asking = code == "ASK"
    where = f"Redis is moving slot {slot} to {host}:{port}" if asking else f"slot {slot} is at {host}:{port}"
    return Redirected(
        f"{what} was not run: {where}; try again", slot=int(slot), host=host, port=int(port), asking=asking
    )


def _cause(error: BaseException) -> str:
    """Say why a connection failed: in the words of the operating system, if it gave the reason."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None and seen.errno in errno.errorcode:
            return os.strerror(seen.errno).lower()
        seen = seen.__cause__ or seen.__context__
    return _line(error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
