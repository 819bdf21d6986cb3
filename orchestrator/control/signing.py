"""Signs commands and checks signatures: HMAC-SHA256 under a secret that operators, supervisors and workers share."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """Signs with one secret and accepts a second one, so that secrets can be changed while all runs.

    Attributes:
        secret: signs; empty: nothing is signed, and signatures are not asked for.
        previous: accepted too; empty: none.
        place: root of the pool's keys: a command for one pool says nothing in another.
    """

    secret: str
    previous: str
    place: str

    @property
    def wanted(self) -> bool:
        """Whether commands must be signed."""
        return self.secret != ""

    @property
    def key(self) -> str:
        """The name of the secret that signs, for people who change secrets; it tells nothing of it."""
        return _name_of(self.secret) if self.secret else ""

    def sign(self, packed: bytes) -> str:
        """The signature of a packed command, hexadecimal; empty without a secret."""
        return _signature(self.secret, self.place, packed) if self.secret else ""

    def accepts(self, packed: bytes, signature: str) -> bool:
        """Whether one of the two secrets made this signature; always, when none is asked for."""
        if not self.wanted:
            return True
        known = [_signature(secret, self.place, packed) for secret in (self.secret, self.previous) if secret]
        # All are compared, and in constant time, so that the time tells nothing. Whoever forges may send any character.
        given = signature.encode(errors="surrogatepass")
        return sum(hmac.compare_digest(one.encode(), given) for one in known) > 0


def signer_of(settings: Settings, *, place: str) -> Signer:
    """The signer that the settings describe; `place` is the root of the pool's keys."""
    secret, previous = settings.control.secret, settings.control.previous_secret
    return Signer(secret.get_secret_value() if secret else "", previous.get_secret_value() if previous else "", place)


def _signature(secret: str, place: str, packed: bytes) -> str:
    # Each part with its length before it: two different pairs never give the same bytes.
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (place.encode(), packed))
    return hmac.new(secret.encode(), parts, sha256).hexdigest()


def _name_of(secret: str) -> str:
    return hmac.new(secret.encode(), b"name of this key", sha256).hexdigest()[:8]
