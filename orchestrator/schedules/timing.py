"""Computes fire times: cron expressions in a time zone, and intervals. Times are milliseconds since 1970.

Around a clock change of the zone the rules are those of Debian's cron, see docs/guides/schedules.md.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from orchestrator.core.durations import MAX_DURATION_S, from_instant_ms
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST_EVERY_MS: Final = 1_000
MAX_CRON_CHARS: Final = 256
_FORMS: Final = {
    "minute": "0 to 59, a list 1,15, a range 9-17, a step */15, or *",
    "hour": "0 to 23, a list 1,15, a range 9-17, a step */6, or *",
    "day-of-month": "1 to 31 if the month has that day, a list 1,15, a range 9-17, a step */5, L, LW, or *",
    "month": "1 to 12 or JAN to DEC, a list 1,7, a range 3-6, a step */3, or *",
    "day-of-week": "0 to 7 or SUN to SAT, a list MON,FRI, a range MON-FRI, MON#1, FRIL, or *",
}
"""What each field takes, for messages."""
_FIELDS: Final = tuple(_FORMS)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_LAST: Final = datetime(9900, 1, 1, tzinfo=UTC)
"""Latest time to search from, because the search also looks at the day after."""


class Timing(Protocol):
    """Computes fire times."""

    def after(self, ms: int) -> int | None:
        """Return the first fire time after `ms`, or None if the schedule never fires again."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Fires at `anchor + n x every`, n = 1, 2, 3 ..., regardless of clock changes."""

    every_ms: int
    anchor_ms: int

    def after(self, ms: int) -> int:
        """Return the first fire time after `ms`."""
        passed = max(0, ms - self.anchor_ms) // self.every_ms
        return self.anchor_ms + (passed + 1) * self.every_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """Fires when the local time of a zone matches the expression."""

    expression: str
    zone: str
    _tz: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tz", ZoneInfo(self.zone))

    @property
    def words(self) -> str:
        """The expression in words, as `at 09:00 on Monday`."""
        said = CronSim(self.expression, _EPOCH).explain()
        return said[:1].lower() + said[1:]

    @property
    def by_the_clock(self) -> bool:
        """True if the expression names minute and hour: a skipped local time fires late, and a repeated one fires once.

        An expression with `*` in either field fires whenever the local time matches.
        """
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def after(self, ms: int) -> int | None:
        """Return the first fire time after `ms`."""
        moment = from_instant_ms(ms)
        if moment >= _LAST:
            return None
        local = moment.astimezone(self._tz)
        around = [(local + days).astimezone(UTC).astimezone(self._tz) for days in (-_DAY, timedelta(), _DAY)]
        offsets = [offset for time in around if (offset := time.utcoffset()) is not None]
        # When clocks go back, local times repeat, so start the search one overlap earlier.
        overlap = max(offsets) - min(offsets)
        best: datetime | None = None
        latest: datetime | None = None
        start = local.replace(tzinfo=None) - overlap
        # Start a minute early, so that `start` itself counts if its time is after `ms`.
        local_times = CronSim(self.expression, start.replace(second=0, microsecond=0) - _MINUTE)
        for local_time in local_times:
            if latest is not None and local_time > latest:
                break
            for instant in self._instants(local_time):
                if instant > moment and (best is None or instant < best):
                    best = instant
                    latest = local_time + overlap
        return None if best is None else (best - _EPOCH) // timedelta(milliseconds=1)

    def _instants(self, local_time: datetime) -> Iterator[datetime]:
        """Yield the times of a local time: usually one, none or two around a clock change."""
        first = local_time.replace(tzinfo=self._tz)
        if _exists(first):
            yield first.astimezone(UTC)
            if not self.by_the_clock and (second := first.replace(fold=1)).utcoffset() != first.utcoffset():
                yield second.astimezone(UTC)
        elif self.by_the_clock:
            while not _exists(first):
                first += _MINUTE
            yield first.astimezone(UTC)


def _exists(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None)


def fires(timing: Timing, after_ms: int) -> Iterator[int]:
    """Yield all fire times after `after_ms`, in order."""
    found = timing.after(after_ms)
    while found is not None:
        yield found
        found = timing.after(found)


# ------------------------------------------------------------------------------------------------- validation


def check_cron(expression: str, zone: str) -> Cron:
    """Parse a cron expression and a zone.

    Raises:
        InvalidInput: the message names the invalid field, or similar zones.
    """
    parts = expression.split() if isinstance(expression, str) and len(expression) <= MAX_CRON_CHARS else []
    if len(parts) != len(_FIELDS):
        shown = repr(expression) if parts else ascii(expression)[:80]
        raise InvalidInput(
            f"cron {shown} must have five fields, {' '.join(_FIELDS)}, as in '30 2 * * MON-FRI'; "
            "seconds are for intervals"
        )
    check_zone(zone)
    for number, name in enumerate(_FIELDS):
        alone = ["*"] * len(_FIELDS)
        alone[number] = parts[number]
        _validate(expression, name, parts[number], " ".join(alone))
    timing = Cron(" ".join(parts), zone)
    _validate(expression, "day-of-month", f"{parts[2]} in month {parts[3]}", timing.expression)
    return timing


def _validate(expression: str, name: str, part: str, alone: str) -> None:
    try:
        CronSim(alone, _EPOCH)
    except (CronSimError, ValueError, AssertionError):
        raise InvalidInput(f"cron {expression!r}: {name} {part!r} is not possible; write {_FORMS[name]}") from None


def check_every(every_ms: int) -> int:
    """Check an interval.

    Raises:
        InvalidInput: shorter than a second, or longer than a hundred years.
    """
    if every_ms < SHORTEST_EVERY_MS:
        raise InvalidInput(f"every {every_ms / 1000:g} s is too often; the shortest interval is 1 s")
    if every_ms > MAX_DURATION_S * 1000:
        raise InvalidInput("the interval is longer than a hundred years; give seconds or a timedelta")
    return every_ms


def check_zone(zone: str) -> str:
    """Check the name of a time zone.

    Raises:
        InvalidInput: the time zone database lacks it; the message names similar ones.
    """
    known = _zones()
    if zone in known:
        return zone
    shown = ascii(zone)[:80]
    lower = {name.lower(): name for name in known}
    by_place: dict[str, str] = {}
    for name in sorted(known, key=lambda name: (name.count("/") != 1, name)):
        by_place.setdefault(name.rpartition("/")[2].lower(), name)
    wanted = zone.lower().replace(" ", "_") if isinstance(zone, str) else ""
    likely = [lower[name] for name in difflib.get_close_matches(wanted, lower, n=2, cutoff=0.75)]
    likely += [
        by_place[name] for name in difflib.get_close_matches(wanted.rpartition("/")[2], by_place, n=2, cutoff=0.75)
    ]
    if wanted in by_place:
        likely.insert(0, by_place[wanted])
    meant = " or ".join(list(dict.fromkeys(likely))[:2])
    advice = f"did you mean {meant}?" if meant else "give a name such as Europe/Berlin or UTC"
    raise InvalidInput(f"time zone {shown} is not known; {advice}")


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())
