"""Signs commands, receipts and registrations, and checks signatures with HMAC-SHA256 under a shared secret."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings

CHARS: Final = 64
"""Length of a signature."""
_pack: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """Signs with one secret and accepts a second one, so that secrets can be rotated without downtime.

    Attributes:
        secret: key that signs; if empty, commands are neither signed nor checked.
        previous: earlier secret, which is still accepted, or empty.
        place: root of the pool's keys, so that a signature is valid in one pool only.
    """

    secret: str
    previous: str
    place: str

    @property
    def wanted(self) -> bool:
        """True if commands must be signed."""
        return self.secret != ""

    @property
    def key(self) -> str:
        """A name of the signing secret that does not reveal it; shows which secret a command used."""
        return _name_of(self.secret) if self.secret else ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of both secrets; the first one signs."""
        return tuple(_name_of(secret) for secret in (self.secret, self.previous) if secret)

    def sign(self, packed: bytes) -> str:
        """Return the hexadecimal signature of a packed command; empty without a secret."""
        return _signature(self.secret, self.place, packed) if self.secret else ""

    def accepts(self, packed: bytes, signature: str) -> bool:
        """Return whether one of the secrets made this signature; True without a secret."""
        if not self.wanted:
            return True
        known = [_signature(secret, self.place, packed) for secret in (self.secret, self.previous) if secret]
        # Every secret is compared in constant time against timing attacks. A forged signature may hold any character.
        given = signature.encode(errors="surrogatepass")
        return sum(hmac.compare_digest(one.encode(), given) for one in known) > 0

    def sign_receipt(self, command: str, sender: str, word: str, detail: str) -> str:
        """Return the signatures of a receipt; empty without a secret. Redis adds its time, which is not signed."""
        return self._sign_statement("receipt", command, sender, word, detail)

    def accepts_receipt(self, command: str, sender: str, word: str, detail: str, signatures: str) -> bool:
        """Return whether one of the secrets made one of these signatures of a receipt; True without a secret."""
        return self._accepts_statement(signatures, "receipt", command, sender, word, detail)

    def sign_registration(self, worker: str, agent: str, slots: int) -> str:
        """Return the signatures of a worker's registration for one agent; empty without a secret."""
        return self._sign_statement("registration", worker, agent, str(slots))

    def accepts_registration(self, worker: str, agent: str, slots: str, signatures: str) -> bool:
        """Return whether one of the secrets made one of these signatures of a registration; True without a secret."""
        return self._accepts_statement(signatures, "registration", worker, agent, slots)

    def _sign_statement(self, *parts: str) -> str:
        """Sign what a process states. While the secret is changed, readers may have either one, so both sign."""
        if not self.wanted:
            return ""
        packed = _pack(parts)
        return "".join(_signature(secret, self.place, packed) for secret in (self.secret, self.previous) if secret)

    def _accepts_statement(self, signatures: str, *parts: str) -> bool:
        if not self.wanted:
            return True
        packed = _pack(parts)
        return any(self.accepts(packed, signatures[at : at + CHARS]) for at in (0, CHARS))


def signer_of(settings: Settings, *, place: str) -> Signer:
    """Return the signer of the settings; `place` is the root of the pool's keys."""
    secret, previous = settings.control.secret, settings.control.previous_secret
    return Signer(secret.get_secret_value() if secret else "", previous.get_secret_value() if previous else "", place)


def _signature(secret: str, place: str, packed: bytes) -> str:
    # Each part is prefixed with its length, so that two different pairs never give the same bytes.
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (place.encode(), packed))
    return hmac.new(secret.encode(), parts, sha256).hexdigest()


def _name_of(secret: str) -> str:
    return hmac.new(secret.encode(), b"name of this key", sha256).hexdigest()[:8]
