"""Stores users, tokens and one-time links of the dashboard, in the slot of the pool.

Redis has hashes of passwords and tokens only. The key that signs session cookies is made of `control.secret` and of a
number in Redis, so that every copy of the dashboard accepts the sessions of the others, and who may read the keys of
the pool cannot make a session where a secret is set.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
from anyio import to_thread

from orchestrator.accounts.model import EVERYTHING, AccountScope, Role, Token, User
from orchestrator.accounts.passwords import LEAST_CHARS, hash_password, matches
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.ids import check_name, encode_foreign
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole

if TYPE_CHECKING:
    from orchestrator.store.store import Store

LINK_S: Final = 600
"""Lifetime of a one-time link."""
MAX_ACCOUNTS: Final = 1000
MAX_NAMES: Final = 100
"""Names to which a user or token may be narrowed."""
TOKEN_MARK: Final = "orc_"  # noqa: S105 - not a secret: scanners of secrets find tokens by it
_NO_PASSWORD: Final = hash_password("")


class _StoredScope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    agents: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()

    @property
    def scope(self) -> AccountScope:
        return AccountScope(frozenset(self.agents), frozenset(self.queues), frozenset(self.sessions))


class _StoredUser(_StoredScope, frozen=True, kw_only=True):
    role: str
    password: str
    number: int
    made_s: int


class _StoredToken(_StoredScope, frozen=True, kw_only=True):
    name: str
    role: str
    made_s: int
    ends_s: int


@dataclass(frozen=True, slots=True)
class Accounts:
    """Users, tokens and links of one pool. Methods raise `StoreError` when Redis does not answer."""

    store: Store
    secret: str = field(default="", repr=False)

    # ---------------------------------------------------------------------------------------------------------- users

    async def put_user(self, name: str, role: Role, password: str, *, scope: AccountScope = EVERYTHING) -> None:
        """Add a user, or replace role, password and scope of one, which ends its sessions.

        Raises:
            InvalidInput: a bad name, a password below 8 characters, or too many users.
        """
        check_name("user", name)
        if len(password) < LEAST_CHARS:
            raise InvalidInput(f"a password needs at least {LEAST_CHARS} characters")
        keys = self.store.keys
        is_known = await self.store.execute("HEXISTS", keys.web_users, name)
        if not is_known and await self.store.execute("HLEN", keys.web_users) >= MAX_ACCOUNTS:
            raise InvalidInput(f"there are {MAX_ACCOUNTS} users; remove one first")
        hashed = await to_thread.run_sync(hash_password, password)
        number = secrets.randbits(48)
        stored = _StoredUser(role=role.word, password=hashed, number=number, made_s=_now_s(), **_names(scope))
        await self.store.execute("HSET", keys.web_users, name, msgspec.json.encode(stored))

    async def remove_user(self, name: str) -> None:
        """Remove a user, which ends its sessions; raises `NotFound`."""
        if not await self.store.execute("HDEL", self.store.keys.web_users, name):
            raise NotFound(f"there is no user {name!r}; see `orc web user list`")

    async def users(self) -> list[User]:
        """Return all users by name."""
        found = await self.store.execute("HGETALL", self.store.keys.web_users)
        users = (_user(read_text(name), data) for name, data in _pairs(found))
        return sorted((user for user in users if user is not None), key=lambda user: user.name)

    async def user(self, name: str) -> User | None:
        """Return one user."""
        data = await self.store.execute("HGET", self.store.keys.web_users, name)
        return None if data is None else _user(name, data)

    async def log_in(self, name: str, password: str) -> User | None:
        """Return the user whose name and password these are. Takes as long without such a user."""
        user = await self.user(name)
        good = await to_thread.run_sync(matches, password, user.password if user else _NO_PASSWORD)
        return user if good and user is not None else None

    # --------------------------------------------------------------------------------------------------------- tokens

    async def make_token(self, name: str, role: Role, *, days: float, scope: AccountScope = EVERYTHING) -> str:
        """Make a token and return it; it cannot be read again.

        Raises:
            InvalidInput: a bad name or number of days, or too many tokens.
        """
        check_name("token", name)
        if not 0 < days <= 3660:
            raise InvalidInput("a token ends after a time above 0 and up to 3660 days")
        keys = self.store.keys
        if await self.store.execute("HLEN", keys.web_tokens) >= MAX_ACCOUNTS:
            raise InvalidInput(f"there are {MAX_ACCOUNTS} tokens; revoke one first")
        token = TOKEN_MARK + secrets.token_urlsafe(32)
        now_s = _now_s()
        ends_s = now_s + round(days * 86_400)
        stored = _StoredToken(name=name, role=role.word, made_s=now_s, ends_s=ends_s, **_names(scope))
        await self.store.execute("HSET", keys.web_tokens, _digest(token), msgspec.json.encode(stored))
        return token

    async def tokens(self) -> list[tuple[str, Token]]:
        """Return the first 12 digits of each token's hash, and the token, by name."""
        found = await self.store.execute("HGETALL", self.store.keys.web_tokens)
        tokens = ((read_text(digest)[:12], _token(data)) for digest, data in _pairs(found))
        return sorted(((short, token) for short, token in tokens if token is not None), key=lambda each: each[1].name)

    async def revoke(self, name: str) -> int:
        """Revoke all tokens of a name; returns how many. Raises `NotFound` if there is none."""
        found = await self.store.execute("HGETALL", self.store.keys.web_tokens)
        digests = [digest for digest, data in _pairs(found) if (token := _token(data)) and token.name == name]
        if not digests:
            raise NotFound(f"there is no token {name!r}; see `orc web token list`")
        return read_whole(await self.store.execute("HDEL", self.store.keys.web_tokens, *digests))

    async def token(self, token: str) -> Token | None:
        """Return what is stored of a token that has not ended."""
        data = await self.store.execute("HGET", self.store.keys.web_tokens, _digest(token))
        found = None if data is None else _token(data)
        return found if found is not None and found.ends_at > datetime.now(UTC) else None

    # -------------------------------------------------------------------------------------------------- links, cookies

    async def make_link(self) -> str:
        """Return the secret of a one-time login as admin, which ends after `LINK_S`."""
        secret = secrets.token_urlsafe(24)
        await self.store.execute("SET", self.store.keys.web_link(_digest(secret)), "admin", "EX", LINK_S)
        return secret

    async def use_link(self, secret: str) -> bool:
        """Return whether this is the secret of a link that has not been used; it is used then."""
        return await self.store.execute("GETDEL", self.store.keys.web_link(_digest(secret))) is not None

    async def cookie_key(self) -> bytes:
        """Return the key that signs session cookies; the first call makes the number that is part of it."""
        key = self.store.keys.web_key
        number = await self.store.execute("GET", key)
        if number is None:
            await self.store.execute("SET", key, secrets.token_hex(32), "NX")
            number = await self.store.execute("GET", key)
        return hmac.digest(self.secret.encode(), b"sessions of the dashboard" + number, sha256)

    async def end_sessions(self) -> None:
        """End all sessions, by a new number."""
        await self.store.execute("SET", self.store.keys.web_key, secrets.token_hex(32))


def _user(name: str, data: bytes) -> User | None:
    try:
        stored = msgspec.json.decode(data, type=_StoredUser)
        return User(name, Role.of_word(stored.role), stored.password, stored.number, _at(stored.made_s), stored.scope)
    except (msgspec.DecodeError, KeyError, OverflowError, ValueError):
        return None


def _token(data: bytes) -> Token | None:
    try:
        stored = msgspec.json.decode(data, type=_StoredToken)
        return Token(stored.name, Role.of_word(stored.role), _at(stored.made_s), _at(stored.ends_s), stored.scope)
    except (msgspec.DecodeError, KeyError, OverflowError, ValueError):
        return None


def _names(scope: AccountScope) -> dict[str, tuple[str, ...]]:
    """Return the names of a scope as they are stored, after a check.

    Raises:
        InvalidInput: one is no name of its kind, or there are too many.
    """
    if len(scope.agents) + len(scope.queues) + len(scope.sessions) > MAX_NAMES:
        raise InvalidInput(f"a scope has at most {MAX_NAMES} names")
    for agent in scope.agents:
        check_name("agent", agent)
    for queue in scope.queues:
        kind, name = QueueName.parse(queue)
        if kind not in {"skill", "agent"}:
            raise InvalidInput(f"queue {queue!r} must be skill:NAME or agent:NAME, as `orc queues list` shows it")
        check_name("queue", name)
    for session in scope.sessions:
        encode_foreign("session", session)
    return {name: tuple(sorted(getattr(scope, name))) for name in ("agents", "queues", "sessions")}


def _pairs(flat: Any) -> list[tuple[bytes, bytes]]:
    return list(flat.items()) if isinstance(flat, dict) else list(zip(flat[::2], flat[1::2], strict=True))


def _digest(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


def _now_s() -> int:
    return round(datetime.now(UTC).timestamp())


def _at(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
