"""lua/control/receipt.lua and refuse.lua: who received and obeyed, what was refused; no flood spoils or fills them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import CancelTasks, Stop
from orchestrator.control.scripts import ReceiptRow, RefusedRow, finish_job, receipt, refuse

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

WEEK_S = 604_800


def noted(pool: Pool, command: str = "c") -> dict[str, str]:
    """Receipts of a command: what each said."""
    flat = pool.execute("HGETALL", pool.keys.receipts(command))
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


def say(pool: Pool, *rows: ReceiptRow) -> int:
    """Note receipts."""
    return pool.call(receipt(pool.keys, rows=rows))


def test_noted(pool: Pool) -> None:
    """Each sender's word with its time and detail; all are kept for a week."""
    assert say(pool, ReceiptRow("c", "w1", "received", "2 running"), ReceiptRow("c", "w2", "done")) == 2
    assert noted(pool) == {"w1": f"{pool.now_ms} received 2 running", "w2": f"{pool.now_ms} done "}
    assert pool.ttl_s(pool.keys.receipts("c")) == WEEK_S


def test_goes_on(pool: Pool) -> None:
    """Done replaces received, with the later time."""
    say(pool, ReceiptRow("c", "w1", "received"))
    pool.sleep(500)
    say(pool, ReceiptRow("c", "w1", "done"))
    assert noted(pool) == {"w1": f"{pool.now_ms} done "}


@pytest.mark.parametrize("word", ["received", "refused"])
def test_never_goes_back(pool: Pool, word: str) -> None:
    """A command that is heard again, or refused because it was given before, spoils no receipt."""
    _, issued = pool.append(Stop())
    say(pool, ReceiptRow(issued.id, "w1", "done"))
    with pool.unchanged():
        assert say(pool, ReceiptRow(issued.id, "w1", word)) == 0


def test_progress_of_a_job_that_has_ended(pool: Pool) -> None:
    """A supervisor that froze in a job and thaws when another one has ended it writes nothing over its end."""
    _, job = pool.append(CancelTasks(count=2))
    assert say(pool, ReceiptRow(job.id, "supervisor", "progress", "1/2 1 cancelled")) == 1
    assert pool.call(finish_job(pool.keys, id_=job.id, sender="supervisor", status="done", detail="2 cancelled"))
    with pool.unchanged():
        assert say(pool, ReceiptRow(job.id, "supervisor", "progress", "1/2 1 cancelled")) == 0


def test_damaged_receipts(pool: Pool) -> None:
    """A key that holds something else keeps the receipts of other commands out of nothing."""
    pool.execute("SET", pool.keys.receipts("a"), "x", "EX", 60)
    assert say(pool, ReceiptRow("a", "w1", "done"), ReceiptRow("b", "w1", "done")) == 1
    assert noted(pool, "b") == {"w1": f"{pool.now_ms} done "}


def test_refused(pool: Pool) -> None:
    """Whoever refuses a command that was accepted says so: it may lack the secret."""
    _, issued = pool.append(Stop())
    assert say(pool, ReceiptRow(issued.id, "w1", "refused", "its signature is invalid")) == 1
    assert noted(pool, issued.id) == {"w1": f"{pool.now_ms} refused its signature is invalid"}


def test_forgeries_fill_no_memory(pool: Pool) -> None:
    """A refusal of what was never accepted leaves no key behind."""
    with pool.unchanged():
        assert say(pool, *[ReceiptRow(f"forged-{n}", "w1", "refused") for n in range(500)]) == 0


def test_refusals_are_recorded_once(pool: Pool) -> None:
    """With what came, why, and which entry it was; a repeat records nothing."""
    rows = [RefusedRow(f"{n}-1", b"\xff\x00", b"s", "it is not signed") for n in range(1, 101)]
    assert pool.call(refuse(pool.keys, rows=rows)) == 100
    with pool.unchanged():
        assert pool.call(refuse(pool.keys, rows=rows)) == 0
    (_, fields), *_ = pool.execute("XRANGE", pool.keys.refused_control, "-", "+", "COUNT", 1)
    assert dict(zip(fields[::2], fields[1::2], strict=True)) == {
        b"c": b"\xff\x00",
        b"s": b"s",
        b"r": b"it is not signed",
        b"e": b"1-1",
    }


def test_the_record_is_bounded(pool: Pool) -> None:
    """A flood of refused commands leaves about a thousand of them."""
    for at in range(0, 5000, 500):
        pool.call(refuse(pool.keys, rows=[RefusedRow(f"{at + n}-1", b"x" * 100, b"", "no") for n in range(500)]))
    assert 1000 <= pool.execute("XLEN", pool.keys.refused_control) < 1200
