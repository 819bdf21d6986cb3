"""Session cookies: only what this key has signed, and only until its end."""

from __future__ import annotations

import pytest

from orchestrator.accounts.model import Role
from orchestrator.dashboard.cookies import Session, seal, unseal

KEY = b"k" * 32
SESSION = Session("ada", Role.OPERATOR, ends_s=1000, login=7)


def test_round_trip() -> None:
    """What was sealed comes back, until it ends."""
    assert unseal(seal(SESSION, KEY), KEY, now_s=999) == SESSION
    assert unseal(seal(SESSION, KEY), KEY, now_s=1000) is None


def test_another_key() -> None:
    """A cookie of another key says nothing."""
    assert unseal(seal(SESSION, b"l" * 32), KEY, now_s=1) is None


@pytest.mark.parametrize("value", ["", ".", "a.b", "é.é", "AAAA", "....", "bm90IGpzb24.AAAA"])
def test_garbage(value: str) -> None:
    """What is no cookie says nothing."""
    assert unseal(value, KEY, now_s=1) is None


def test_each_changed_character() -> None:
    """No character of a cookie can be changed, but for bits that base64 does not use."""
    value = seal(SESSION, KEY)
    for at in range(len(value)):
        changed = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        found = unseal(changed, KEY, now_s=1)
        assert found is None or found == SESSION
