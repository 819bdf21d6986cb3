"""Places of a person: noted for a time, refused after an erasure, left when the text is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.keys import PLACES
from orchestrator.subjects import scripts
from orchestrator.subjects.scripts import PlaceRow
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server


class Subject(Scope):
    """The scope of a person."""

    def note(self, place: str, keep_ms: int) -> str:
        """Run note."""
        return self.call(scripts.note(self.keys, rows=[PlaceRow(place, keep_ms)]))

    def refuse(self, for_ms: int) -> int:
        """Run refuse."""
        return self.call(scripts.refuse(self.keys, for_ms=for_ms))

    def leave(self, *places: str) -> int:
        """Run leave."""
        return self.call(scripts.leave(self.keys, places=places))

    def places(self) -> list[bytes]:
        """The stored places."""
        found: list[bytes] = self.store.execute("ZRANGE", self.keys.key(PLACES), 0, -1)
        return found


@pytest.fixture
def subject(redis_server: RedisServer, prefix: str) -> Iterator[Subject]:
    """A person of whom nothing is known."""
    subject = Subject(redis_server.url, prefix, "subject", "d" * 32)
    yield subject
    subject.close()


def test_note(subject: Subject) -> None:
    """A place stays for the longest time noted, the key as long as its last place; ended places are dropped."""
    assert [subject.note("a", 60_000), subject.note("b", 1_000), subject.note("a", 2_000)] == ["ok"] * 3
    assert 59_000 < subject.left_ms(PLACES) <= 60_000
    subject.sleep(1_500)
    assert subject.note("c", 1_000) == "ok"
    assert subject.places() == [b"c", b"a"]
    before = subject.snapshot()
    assert subject.note("c", 1_000) == "ok"
    assert subject.snapshot() == before


def test_refuse(subject: Subject) -> None:
    """Nothing is noted until the time is over, which a repeat extends; what was noted before is counted and stays."""
    subject.note("a", 600_000)
    assert subject.refuse(10_000) == 1
    before = subject.places()
    assert subject.note("b", 60_000) == "erased"
    subject.sleep(9_000)
    assert subject.refuse(10_000) == 1
    subject.sleep(9_000)
    assert subject.note("a", 900_000) == "erased"
    assert subject.places() == before
    subject.sleep(1_001)
    assert subject.note("b", 60_000) == "ok"
    assert 0 < subject.left_ms("erased") <= 10_000


def test_leave(subject: Subject) -> None:
    """Places are removed, up to 500 in one call; a repeat removes nothing; no key stays."""
    for number in range(501):
        subject.note(f"p{number}", 60_000)
    assert subject.leave(*(f"p{number}" for number in range(500))) == 1
    assert subject.leave("p0", "p1") == 1
    assert subject.leave("p500", "p501") == 0
    assert subject.names() == []
