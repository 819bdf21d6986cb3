"""lua/control/append.lua: a command is accepted once, in time, at a bounded rate; then what it orders is active."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.control.commands import CancelTasks, RecordAnswer, RenewEpoch, Stop, make_command
from orchestrator.control.desired import read_desired
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import read_slot_value, unpack_issued
from orchestrator.core.ids import new_task_id
from tests.helpers.cases import each_case
from tests.lua.pool import seq

if TYPE_CHECKING:
    from orchestrator.control.commands import Command
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

SECRET = "0123456789abcdef"
STOP = Stop()


def test_accepted(pool: Pool) -> None:
    """It stands in the desired state and in the stream, byte for byte, and supervisors are rung."""
    answer, issued = pool.append(STOP)
    assert answer.status == "accepted"
    desired = pool.desired()
    assert (desired["seq"], "sessions" in desired) == (seq(1), False)
    found = read_slot_value(desired["stop:all"])
    assert (found.mark, found.issued, found.signature, found.ended) == ("-", issued, "", False)
    ((entry, fields),) = pool.execute("XRANGE", pool.keys.control, "-", "+")
    assert (entry.decode(), unpack_issued(fields[1])) == (answer.entry, issued)
    assert pool.notifications() == ["agents"]
    assert pool.execute("XLEN", pool.keys.refused_control) == 0


def test_start_without_a_secret(pool: Pool) -> None:
    """The slot is emptied; only the number of the state stays."""
    pool.append(STOP)
    pool.append(make_command("start", {}))
    assert pool.desired() == {"seq": seq(2)}


def test_start_with_a_secret(pool: Pool) -> None:
    """The slot says that the stop is ended, signed, until a supervisor has checked that."""
    pool.append(STOP, secret=SECRET)
    _, issued = pool.append(make_command("start", {}), secret=SECRET)
    found = read_slot_value(pool.desired()["stop:all"])
    assert (found.ended, found.issued) == (True, issued)
    assert len(found.signature) == 64


@pytest.mark.parametrize(
    ("command", "mark"),
    [({}, "-"), ({"now": True}, "n"), ({"refuse": True}, "r"), ({"now": True, "refuse": True}, "b")],
)
def test_marks_of_a_stop(pool: Pool, command: dict[str, Any], mark: str) -> None:
    """What is special about a stop stands in its slot."""
    pool.append(make_command("stop", command))
    assert read_slot_value(pool.desired()["stop:all"]).mark == mark


def test_stopped_sessions_are_counted(pool: Pool) -> None:
    """Each once, however often it is stopped and started; the gates look at sessions only when there are some."""
    for session in ("a", "b", "a"):
        pool.append(make_command("stop", {"session": session}))
    assert pool.desired()["sessions"] == b"2"
    for session in ("a", "a", "c"):
        pool.append(make_command("start", {"session": session}))
    assert pool.desired()["sessions"] == b"1"


def test_resumed_queue(pool: Pool) -> None:
    """One command may end two orders."""
    pool.append(make_command("pause-queue", {"queue": "skill:sum"}))
    pool.append(make_command("drain-queue", {"queue": "skill:sum"}))
    assert {"pause:queue:skill:sum", "drain:queue:skill:sum"} < set(pool.desired())
    pool.append(make_command("resume-queue", {"queue": "skill:sum"}))
    assert set(pool.desired()) == {"seq"}


def test_own_repeat(pool: Pool) -> None:
    """The same sender sends the same again, as after a lost answer: accepted with the same entry, and done once."""
    id_ = new_task_id()
    first, _ = pool.append(STOP, id_=id_)
    with pool.unchanged():
        again, _ = pool.append(STOP, id_=id_)
    assert again == first


def test_own_repeat_later(pool: Pool) -> None:
    """A repeat of what was accepted is no news, even when it would come too late by now."""
    id_ = new_task_id()
    since_ms = pool.now_ms
    first, _ = pool.append(STOP, id_=id_)
    pool.sleep(120_000)
    with pool.unchanged():
        again, _ = pool.append(STOP, id_=id_, issued_ms=since_ms)
    assert again == first


def test_replayed(pool: Pool) -> None:
    """Somebody else sends the same: refused, recorded, and what was started stays started."""
    id_ = new_task_id()
    first, _ = pool.append(STOP, id_=id_)
    pool.append(make_command("start", {}))
    again, _ = pool.append(STOP, id_=id_, token="other")
    assert (again.status, again.entry) == ("replayed", first.entry)
    assert "stop:all" not in pool.desired()
    assert [fields[-1] for _, fields in pool.entries(pool.keys.refused_control)] == ["replayed"]


@each_case(
    ("offset_ms", "status"),
    [(-60_001, "expired"), (-60_000, "accepted"), (5_000, "accepted"), (5_001, "early"), (6_000, "early")],
    fresh="pool",
)
def test_time(pool: Pool, offset_ms: int, status: str) -> None:
    """Neither what was issued too long ago is accepted nor what says that it comes from the future."""
    answer, _ = pool.append(STOP, issued_ms=pool.now_ms + offset_ms)
    assert answer.status == status
    assert ("stop:all" in pool.desired()) is (status == "accepted")
    refused = [] if status == "accepted" else [status]
    assert [fields[-1] for _, fields in pool.entries(pool.keys.refused_control)] == refused


def test_epoch(pool: Pool) -> None:
    """What was issued before the epoch was renewed is stale; what stands, stands."""
    pool.append(STOP)
    pool.append(RenewEpoch())
    assert pool.desired()["epoch"] == b"1"
    assert pool.append(make_command("start", {}), epoch=0)[0].status == "stale"
    assert "stop:all" in pool.desired()
    assert pool.append(make_command("start", {}), epoch=1)[0].status == "accepted"
    # After Redis lost the epoch, it goes on from that of the command.
    pool.execute("HDEL", pool.keys.desired, "epoch")
    pool.append(RenewEpoch(), epoch=5)
    assert pool.desired()["epoch"] == b"6"
    pool.append(RenewEpoch(), epoch=6)
    assert pool.desired()["epoch"] == b"7"


def test_busy(pool: Pool) -> None:
    """Beyond the rate commands are refused until the next minute; a stop never is."""
    pause = make_command("pause-agent", {"agent": "ed"})
    pool.sleep(60_000 - pool.now_ms % 60_000)
    answers = []
    for _ in range(3):
        answers.append(pool.append(pause, per_minute=2)[0].status)
        pool.sleep(19_000)
    assert answers == ["accepted", "accepted", "busy"]
    pool.sleep(2_999)
    assert pool.append(STOP, per_minute=2)[0].status == "accepted"
    assert pool.append(make_command("start", {}), per_minute=2)[0].status == "busy"
    pool.sleep(1)
    assert pool.append(make_command("start", {}), per_minute=2)[0].status == "accepted"
    assert [pool.append(pause, per_minute=per_minute)[0].status for per_minute in (0, 1, 2)] == [
        "busy", "busy", "accepted",
    ]  # fmt: skip


def test_records_leave_room_for_commands(pool: Pool) -> None:
    """Records of what programs did fill half of a minute at most; commands may use all of it."""
    pool.sleep(60_000 - pool.now_ms % 60_000)

    def give(command: Command) -> str:
        return pool.append(command, per_minute=4)[0].status

    records = [give(RecordAnswer(task=new_task_id(), question=1)) for _ in range(3)]
    assert records == ["accepted", "accepted", "busy"]
    pauses = [give(make_command("pause-agent", {"agent": "ed"})) for _ in range(3)]
    assert pauses == ["accepted", "accepted", "busy"]


def test_job(pool: Pool) -> None:
    """A job is kept until the supervisor has done it; nobody is rung for it."""
    answer, issued = pool.append(CancelTasks(count=3))
    assert answer.status == "accepted"
    assert read_slot_value(pool.desired()[f"do:{issued.id}"]).issued == issued
    assert pool.notifications() == []


def test_record(pool: Pool) -> None:
    """A record of an action changes no state, and no process that follows the commands reads it."""
    answer, issued = pool.append(RecordAnswer(task=new_task_id(), question=1))
    assert pool.desired() == {}
    assert pool.notifications() == []
    assert pool.execute("XLEN", pool.keys.control) == 0
    ((entry, _),) = pool.execute("XRANGE", pool.keys.action_records, "-", "+")
    assert entry.decode() == answer.entry
    assert pool.append(RecordAnswer(task=new_task_id(), question=1), id_=issued.id, token="other")[0] == (
        "replayed", answer.entry,
    )  # fmt: skip
    assert pool.append(RecordAnswer(task=new_task_id(), question=1), per_minute=0)[0].status == "busy"
    assert pool.execute("XLEN", pool.keys.refused_records) == 2
    assert pool.execute("EXISTS", pool.keys.refused_control) == 0
    assert pool.append(make_command("start", {}), per_minute=0)[0].status == "busy"
    assert pool.execute("XLEN", pool.keys.refused_control) == 1


def test_limit(pool: Pool) -> None:
    """An operator's rate counts until it is reset; registrations in between define the one that counts then."""
    pool.execute("HSET", pool.keys.limits, "model", "10 60000000")
    pool.append(make_command("set-limit", {"limit": "model", "rate": "3/s"}))
    pool.append(make_command("set-limit", {"limit": "model", "rate": "2/s"}))
    assert pool.execute("HGET", pool.keys.limits, "model") == b"2 1000000"
    assert pool.execute("HGET", pool.keys.limits, "=model") == b"10 60000000"
    pool.append(make_command("reset-limit", {"limit": "model"}))
    assert pool.execute("HGETALL", pool.keys.limits) == [b"model", b"10 60000000"]


@each_case("damage", [b"nonsense", b"", b"nan", b"inf", b"-0", b"-7", b"1e400", b"9" * 16, b"9" * 5000], fresh="pool")
@each_case("field", ["seq", "sessions", "epoch"], fresh="pool")
def test_damaged_numbers(pool: Pool, field: str, damage: bytes) -> None:
    """Whoever writes nonsense into the numbers of the state keeps no stop out, and counting goes on."""
    pool.execute("HSET", pool.keys.desired, field, damage)
    answer, _ = pool.append(make_command("stop", {"session": "s"}))
    assert answer.status == "accepted"
    desired = pool.desired()
    assert "stop:session:s" in desired
    assert (desired["seq"], desired["sessions"]) == (seq(1), b"1")
    assert read_desired(pool.execute("HGETALL", pool.keys.desired), Signer("", "", pool.keys.root)).seq == int(seq(1))


def test_a_stop_where_nothing_can_be_announced(pool: Pool) -> None:
    """A stream that is none any more keeps no stop out; everybody reads the state anew soon, and a repeat is known."""
    pool.execute("SET", pool.keys.control, "x", "EX", 60)
    answer, issued = pool.append(STOP)
    assert (answer.status, answer.entry) == ("accepted", f"{pool.now_ms}-0")
    assert set(pool.desired()) == {"stop:all", "seq"}
    with pool.unchanged():
        assert pool.append(STOP, id_=issued.id)[0] == answer


@pytest.mark.parametrize("damage", ["hash", "word", "infinite", "most", "long"])
def test_a_damaged_count_keeps_no_command_out(pool: Pool, damage: str) -> None:
    """Each client may write the count of the minute: what is no count is replaced, and a stop is accepted."""
    rate_key = pool.keys.control_rate(pool.now_ms // 60_000)
    values = {"word": "x", "infinite": "inf", "most": str(2**63 - 1), "long": "9" * 400}
    for command in (STOP, make_command("pause-agent", {"agent": "ed"})):
        pool.execute("DEL", rate_key)
        if damage == "hash":
            pool.execute("HSET", rate_key, "x", "1")
        else:
            pool.execute("SET", rate_key, values[damage])
        assert pool.append(command, per_minute=2)[0].status == "accepted"
        assert (pool.execute("GET", rate_key), pool.ttl_s(rate_key)) == (b"1", 120)
    assert {"stop:all", "pause:agent:ed"} <= set(pool.desired())


def test_a_doorbell_of_another_type_keeps_no_stop_out(pool: Pool) -> None:
    """The supervisors look in every sweep."""
    pool.execute("SET", pool.keys.doorbell, "x")
    assert pool.append(STOP)[0].status == "accepted"
    assert "stop:all" in pool.desired()
    pool.execute("DEL", pool.keys.doorbell)


def test_a_record_takes_no_nonce_of_a_command(pool: Pool) -> None:
    """Clients write records, also with the id of a command, and must not make the command look like a repeat."""
    record, issued = pool.append(RecordAnswer(task=new_task_id(), question=1))
    assert record.status == "accepted"
    assert pool.execute("EXISTS", pool.keys.nonce(issued.id)) == 0
    assert pool.execute("GET", pool.keys.record_nonce(issued.id)).decode().split()[0] == record.entry
    answer, _ = pool.append(STOP, id_=issued.id)
    assert answer.status == "accepted"
    assert pool.execute("GET", pool.keys.nonce(issued.id)).decode().split()[0] == answer.entry


def test_keys_go_away(pool: Pool) -> None:
    """Nonces outlive the time in which a replay could be accepted by an hour; the count of a minute lives two."""
    _, issued = pool.append(STOP)
    assert pool.ttl_s(pool.keys.nonce(issued.id)) == 3660
    (rate_key,) = [name for name in pool.names() if name.startswith(f"{pool.keys.control}:")]
    assert 100 < pool.ttl_s(rate_key) <= 120
