"""Fire times: both nights of a clock change in two zones, the calendar, intervals, and what validation refuses."""

from __future__ import annotations

import calendar
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core.durations import from_instant_ms, instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.schedules.timing import Cron, Every, check_cron, check_every, check_zone, fires
from tests.helpers.cases import each_case

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
NIGHTS = {BERLIN: ("2026-03-29", "2026-10-25"), NEW_YORK: ("2026-03-08", "2026-11-01")}
"""Clocks go from 02:00 to 03:00, and from 03:00 back to 02:00; in New York from 02:00 back to 01:00."""


def night(expression: str, zone: str, day: str, *, days: int = 1) -> list[str]:
    """What fires within local days, as the wall clock shows it with its offset."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (begin.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=ZoneInfo(zone))
    found = itertools.takewhile(
        lambda ms: ms < instant_ms("end", end), fires(check_cron(expression, zone), instant_ms("begin", begin) - 1)
    )
    return [f"{from_instant_ms(ms).astimezone(ZoneInfo(zone)):%H:%M%z}" for ms in found]


@each_case(
    ("expression", "berlin", "new_york"),
    [
        ("30 2 * * *", ["03:00+0200"], ["03:00-0400"]),
        ("0,20,40 2 * * *", ["03:00+0200"], ["03:00-0400"]),
        ("30 2,3 * * *", ["03:00+0200", "03:30+0200"], ["03:00-0400", "03:30-0400"]),
        ("59 1 * * *", ["01:59+0100"], ["01:59-0500"]),
        ("0 3 * * *", ["03:00+0200"], ["03:00-0400"]),
        ("*/20 2 * * *", [], []),
        ("30 1-3 * * *", ["01:30+0100", "03:00+0200", "03:30+0200"], ["01:30-0500", "03:00-0400", "03:30-0400"]),
    ],
)
def test_night_without_half_past_two(expression: str, berlin: list[str], new_york: list[str]) -> None:
    """A time that does not exist is made up for when the clocks have changed, once; one with `*` does not come."""
    assert night(expression, BERLIN, NIGHTS[BERLIN][0]) == berlin
    assert night(expression, NEW_YORK, NIGHTS[NEW_YORK][0]) == new_york


@each_case(
    ("zone", "expression", "expected"),
    [
        (BERLIN, "30 2 * * *", ["02:30+0200"]),
        (BERLIN, "0 2,3 * * *", ["02:00+0200", "03:00+0100"]),
        (BERLIN, "*/30 2 * * *", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        (NEW_YORK, "30 1 * * *", ["01:30-0400"]),
        (NEW_YORK, "30 2 * * *", ["02:30-0500"]),
        (NEW_YORK, "*/30 1 * * *", ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"]),
    ],
)
def test_night_with_an_hour_twice(zone: str, expression: str, expected: list[str]) -> None:
    """A time that exists twice fires the first time alone; one with `*` fires both times."""
    assert night(expression, zone, NIGHTS[zone][1]) == expected


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_hourly_in_both_nights(zone: str) -> None:
    """An hourly job fires every 60 minutes: 23 times in the short day, 25 times in the long one, 24 in others."""
    for day, count in zip(NIGHTS[zone], (23, 25), strict=True):
        assert len(night("0 * * * *", zone, day)) == count
        begin = instant_ms("day", datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)))
        found = list(itertools.islice(fires(check_cron("0 * * * *", zone), begin), 30))
        assert {later - earlier for earlier, later in itertools.pairwise(found)} == {3_600_000}
    assert len(night("0 * * * *", zone, "2026-06-01")) == 24
    assert len(night("*/5 * * * *", zone, NIGHTS[zone][1])) == 25 * 12


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_intervals_in_both_nights(zone: str) -> None:
    """An interval knows no wall clock: what comes every 90 minutes comes every 90 minutes."""
    for day in NIGHTS[zone]:
        begin = instant_ms("day", datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)))
        found = list(itertools.islice(fires(Every(5_400_000, begin), begin), 20))
        assert found == [begin + n * 5_400_000 for n in range(1, 21)]


def test_between_the_two() -> None:
    """From within the hour that comes again: what was fired the first time is not fired again, the next day is next."""
    inside = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo(BERLIN))
    found = check_cron("30 2 * * *", BERLIN).after(instant_ms("inside", inside))
    assert found is not None
    assert from_instant_ms(found) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@each_case(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29", "2032-02-29"]),
        ("0 0 L * *", "2026-01-31", ["2026-02-28", "2026-03-31"]),
        ("0 0 * * MON#1", "2026-01-01", ["2026-01-05", "2026-02-02"]),
        ("0 0 13 * FRI", "2026-01-01", ["2026-01-02", "2026-01-09", "2026-01-13"]),
        ("0 0 */2 * MON", "2026-01-01", ["2026-01-05", "2026-01-19"]),
        ("0 0 1 jan,jul *", "2026-01-01", ["2026-07-01", "2027-01-01"]),
        ("0 0 * * 7", "2026-01-01", ["2026-01-04", "2026-01-11"]),
    ],
)
def test_calendar(expression: str, after: str, expected: list[str]) -> None:
    """Leap days, last days, the n-th weekday; two kinds of days are either of them, unless one begins with `*`."""
    begin = instant_ms("after", datetime.fromisoformat(after).replace(tzinfo=UTC))
    found = itertools.islice(fires(check_cron(expression, "UTC"), begin), len(expected))
    assert [f"{from_instant_ms(ms):%Y-%m-%d}" for ms in found] == expected


# ------------------------------------------------------------------------------------------------- against an oracle


def part(low: int, high: int) -> st.SearchStrategy[str]:
    """One field: all, one, a list, a range, steps."""
    value = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.sampled_from(["*/2", "*/7", "*/15"]),
        value.map(str),
        st.lists(value, min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))),
        st.tuples(value, value).map(lambda two: f"{min(two)}-{max(two)}"),
    )


EXPRESSIONS = st.tuples(part(0, 59), part(0, 5), part(1, 28), st.just("*"), part(0, 6)).map(" ".join)
AROUND = {
    "UTC": datetime(2026, 3, 29, tzinfo=UTC),
    BERLIN: datetime(2026, 3, 28, 12, tzinfo=UTC),
    f"{BERLIN} back": datetime(2026, 10, 24, 12, tzinfo=UTC),
    NEW_YORK: datetime(2026, 3, 7, 12, tzinfo=UTC),
    f"{NEW_YORK} back": datetime(2026, 10, 31, 12, tzinfo=UTC),
    LORD_HOWE: datetime(2026, 10, 3, 0, tzinfo=UTC),  # half an hour, at 02:00
    f"{LORD_HOWE} back": datetime(2026, 4, 4, 0, tzinfo=UTC),
    "America/Santiago": datetime(2026, 9, 5, 12, tzinfo=UTC),  # at midnight: the day begins at 01:00
    "America/Santiago back": datetime(2026, 4, 4, 12, tzinfo=UTC),
}
SPAN = timedelta(hours=30)


def numbers(part: str, low: int, high: int) -> set[int]:
    """What a field of the strategy above says."""
    found: set[int] = set()
    for term in part.split(","):
        head, _, step = term.partition("/")
        first, _, last = head.partition("-")
        every = range(low, high + 1) if head == "*" else range(int(first), int(last or first) + 1)
        found |= set(list(every)[:: int(step or 1)])
    return found


def walk(expression: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    """The rules of Debian's cron, minute by minute: what the wall clock shows decides, and of some what it skips."""
    minute, hour, day, _, weekday = expression.split()
    minutes, hours, days = numbers(minute, 0, 59), numbers(hour, 0, 23), numbers(day, 1, 31)
    weekdays = {number % 7 for number in numbers(weekday, 0, 7 if weekday == "7" else 6)}
    both = day.startswith("*") or weekday.startswith("*")
    by_the_clock = not minute.startswith("*") and not hour.startswith("*")

    def fits(wall: datetime) -> bool:
        dom, dow = wall.day in days, (wall.weekday() + 1) % 7 in weekdays
        return wall.minute in minutes and wall.hour in hours and (dom and dow if both else dom or dow)

    found, shown = [], set()
    moment = begin
    before = (begin - timedelta(minutes=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    for hours_back in range(1, 4 * 60):
        shown.add((begin - timedelta(minutes=hours_back)).astimezone(ZoneInfo(zone)).replace(tzinfo=None))
    while moment < end:
        wall = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        walls = [wall]
        if by_the_clock:
            skipped = before + timedelta(minutes=1)
            while skipped < wall:
                walls.append(skipped)
                skipped += timedelta(minutes=1)
            walls = [one for one in walls if one not in shown]
        if any(fits(one) for one in walls):
            found.append(moment)
        shown.add(wall)
        before = wall
        moment += timedelta(minutes=1)
    return found


@settings(max_examples=15, deadline=None)
@given(expression=EXPRESSIONS, place=st.sampled_from(list(AROUND)))
@example(expression="*/15 4 * * *", place=LORD_HOWE)
@example(expression="0 0 * * 0", place="America/Santiago")
@example(expression="0 * * * 0", place="America/Santiago")
def test_against_a_walk(expression: str, place: str) -> None:
    """Fire times are those that a walk minute by minute finds, around clock changes of all kinds."""
    zone, begin = place.partition(" ")[0], AROUND[place]
    try:
        timing = check_cron(expression, zone)
    except InvalidInput:
        return
    end = begin + SPAN
    found = itertools.takewhile(lambda ms: ms < instant_ms("end", end), fires(timing, instant_ms("begin", begin) - 1))
    assert [from_instant_ms(ms) for ms in found] == walk(expression, zone, begin, end)


@settings(max_examples=50, deadline=None)
@given(expression=EXPRESSIONS, zone=st.sampled_from(["UTC", BERLIN, NEW_YORK]), days=st.integers(0, 700))
def test_as_cronsim(expression: str, zone: str, days: int) -> None:
    """In zones that change by whole hours in the night they are those of cronsim, which follows Debian's cron too."""
    begin = datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(days=days)
    ours = list(itertools.islice(fires(Cron(expression, zone), instant_ms("begin", begin)), 20))
    theirs: list[int] = []
    for moment in CronSim(expression, begin.astimezone(ZoneInfo(zone)) if zone != "UTC" else begin):
        if (ms := instant_ms("fire", moment)) not in theirs:  # two times of the skipped hour are one
            theirs.append(ms)
        if len(theirs) == 20:
            break
    assert ours == theirs


@given(every=st.integers(1000, 10**9), anchor=st.integers(0, 2 * 10**12), after=st.integers(0, 4 * 10**12))
def test_every(every: int, anchor: int, after: int) -> None:
    """An interval fires at whole multiples behind its anchor, the first behind the given instant."""
    found = Every(every, anchor).after(after)
    assert found > max(after, anchor)
    assert (found - anchor) % every == 0
    assert found - every <= max(after, anchor)


def test_to_the_end_of_time() -> None:
    """Behind the last years that a date can have there is nothing more, and no error."""
    assert check_cron("0 0 * * *", BERLIN).after(instant_ms("late", datetime(9950, 1, 1, tzinfo=UTC))) is None


# ------------------------------------------------------------------------------------------------- validation


@each_case(
    ("expression", "said"),
    [
        ("60 * * * *", "minute '60'"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day-of-month '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day-of-week '8'"),
        ("5-1 * * * *", "minute '5-1'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("0 0 31 2 *", "day-of-month '31 in month 2'"),
        ("0 0 31 4,6 *", "day-of-month '31 in month 4,6'"),
        ("0 0 * * FUNDAY", "day-of-week 'FUNDAY'"),
        ("0 0 * * ²L", "day-of-week"),
        ("x y z a b", "minute 'x'"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "seconds are for intervals"),
        ("@daily", "five fields"),
        ("", "five fields"),
        ("9" * 5000 + " * * * *", "five fields"),
    ],
)
def test_bad_cron(expression: str, said: str) -> None:
    """An expression that is not possible is refused, and the message says which field it is."""
    with pytest.raises(InvalidInput) as refused:
        check_cron(expression, "UTC")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("value", [None, 5, b"0 * * * *"])
def test_no_text(value: Any) -> None:
    """What is no text is refused as such."""
    with pytest.raises(InvalidInput, match="five fields"):
        check_cron(value, "UTC")


@given(st.text(alphabet="0123456789*/,-#LW MONSUJAx\t²", max_size=25))
def test_any_text(expression: str) -> None:
    """Whatever is typed is either refused or tells a next time, or that there is none."""
    try:
        timing = check_cron(expression, BERLIN)
    except InvalidInput:
        return
    found = timing.after(0)
    assert found is None or found > 0


@each_case(
    ("zone", "meant"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("berlin", "did you mean Europe/Berlin?"),
        ("New York", "did you mean America/New_York?"),
        ("../../etc/passwd", "such as Europe/Berlin or UTC"),
        ("Europe", "is not known"),
        ("", "is not known"),
    ],
)
def test_bad_zone(zone: str, meant: str) -> None:
    """A zone that is not known is refused with those that may have been meant."""
    with pytest.raises(InvalidInput) as refused:
        check_zone(zone)
    assert meant in str(refused.value)


@pytest.mark.parametrize("every_ms", [0, 1, 999])
def test_too_often(every_ms: int) -> None:
    """An interval below a second is refused; a second is not."""
    with pytest.raises(InvalidInput, match="shortest interval is 1 s"):
        check_every(every_ms)
    assert check_every(1000) == 1000


def test_days_of_a_year() -> None:
    """Each day of a year fires once, whatever the clocks do."""
    for zone in (BERLIN, NEW_YORK, LORD_HOWE, "America/Santiago"):
        begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
        for expression in ("30 2 * * *", "0 0 * * *", "45 1 * * *"):
            found = itertools.islice(fires(check_cron(expression, zone), instant_ms("begin", begin) - 1), 365)
            days = [from_instant_ms(ms).astimezone(ZoneInfo(zone)).timetuple().tm_yday for ms in found]
            assert days == list(range(1, 366)), (zone, expression)
    assert not calendar.isleap(2026)
