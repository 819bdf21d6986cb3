"""Signs the session cookie, so that any copy of the dashboard knows who logged in and none stores it."""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from orchestrator.accounts.model import Role


@dataclass(frozen=True, slots=True)
class Session:
    """Content of a session cookie.

    Attributes:
        name: of the user.
        role: the highest that the session may have.
        ends_s: Unix time of its end.
        login: of a login by password, the number of the password, which a change of it raises; 0 of a one-time link.
    """

    name: str
    role: Role
    ends_s: int
    login: int = 0


def seal(session: Session, key: bytes) -> str:
    """Return the value of the cookie."""
    body = msgspec.json.encode([session.name, session.role.word, session.ends_s, session.login])
    return f"{_text(body)}.{_text(_mac(body, key))}"


def unseal(value: str, key: bytes, *, now_s: float | None = None) -> Session | None:
    """Return what a cookie says; None if it was not sealed with this key, or has ended."""
    body_text, _, mac_text = value.partition(".")
    try:
        body, mac = urlsafe_b64decode(body_text + "=="), urlsafe_b64decode(mac_text + "==")
        if not hmac.compare_digest(mac, _mac(body, key)):
            return None
        name, word, ends_s, login = msgspec.json.decode(body, type=tuple[str, str, int, int])
        session = Session(name, Role.of_word(word), ends_s, login)
    except (ValueError, KeyError):
        return None
    return session if session.ends_s > (time.time() if now_s is None else now_s) else None


def _mac(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"orchestrator dashboard session\0" + body, sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
