"""Follows the master of a Sentinel group.

A thread per sentinel asks it each second who the master is, after each doubt again, and receives what it announces. The
newest configuration counts (its epoch), as among the sentinels themselves. All stores of a process share the threads.

After a failover the old master takes writes for seconds, and they are lost. So the stores close their connections to it
as soon as a sentinel has chosen a replica: a moment before that replica is promoted (docs/internals/adr/0065).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import ssl
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hiredis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from orchestrator.core.errors import ServerUnavailable, TlsRefused
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.core.redis_url import Node
from orchestrator.store.locator import Address
from orchestrator.store.tls import explain_refusal
from orchestrator.store.wire import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.core.redis_url import RedisUrl
    from orchestrator.store.locator import Leaver

_log = get_logger(__name__)

ASK_EVERY_S: Final = 1.0
DOUBTED_S: Final = 0.25
"""Least time between two questions to a sentinel: in an outage every connection that fails is a doubt."""
ANSWER_S: Final = 2.0
"""Time for a connection to a sentinel, and for an answer."""
PROMOTED_S: Final = 5.0
"""Time for which an announced promotion counts, although no configuration, or only one sentinel's, has it yet."""

_CHOSEN: Final = b"+failover-state-send-slaveof-noone"
_ANNOUNCED: Final = (_CHOSEN, b"+promoted-slave", b"+switch-master", b"-failover-abort-*")
_NOTHING: Final = object()


class Answer(NamedTuple):
    """Answer of a sentinel: the place of the master, and the epoch of the configuration that says so."""

    master: Node
    epoch: int


class TlsReason(str):
    """Reason for which TLS keeps this program from a sentinel, until settings change."""

    __slots__ = ()


class SentinelLocator:
    """Answers the address of the master of a group.

    Args:
        place: names the sentinels and the group.
    """

    def __init__(self, place: RedisUrl) -> None:
        self._place = place
        self._leavers: weakref.WeakSet[Leaver] = weakref.WeakSet()
        self._master: Address | None = None
        self._epoch = -1
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a process that has none of the threads."""
        self._changed = threading.Condition()
        self._answers: dict[Node, Answer | str] = {}
        self._expected_until_s = 0.0
        self._listeners: list[_Listener] = []
        self._has_waited = False

    @property
    def single(self) -> Address:
        """The address of the master. The first call waits for the first answer of a sentinel.

        Raises:
            ServerUnavailable: no sentinel has named a master yet.
            TlsRefused: a certificate is missing or not accepted.
        """
        return self._master if self._master is not None and self._listeners else self._wait_for_first()

    def address(self, slot: int) -> Address:  # noqa: ARG002 - one server has all slots
        """Return the address of the master."""
        return self.single

    def moved(self, slot: int, address: Address) -> None:
        """Ignore a redirect, because one server has all slots."""

    def doubt(self, address: Address) -> None:  # noqa: ARG002 - all are asked
        """Ask the sentinels again."""
        for listener in self._listeners:
            listener.ask()

    @property
    def servers(self) -> Sequence[Address]:
        """The address of the master."""
        return [self.single]

    def late(self, address: Address) -> None:
        """Ask the sentinels again, because a reply takes long."""
        self.doubt(address)

    def prepare(self) -> None:
        """Wait for the first answer of a sentinel, if none has come. Blocks.

        Raises:
            ServerUnavailable: no sentinel names the master.
            TlsRefused: a certificate is missing or not accepted.
        """
        _ = self.single

    def watch(self, leaver: Leaver) -> None:
        """Let a store leave the old master when it changes."""
        with self._changed:
            self._leavers.add(leaver)

    def _wait_for_first(self) -> Address:
        with self._changed:
            if not self._listeners:
                self._listeners = [_Listener(self, node, self._place) for node in self._place.nodes]
                weakref.finalize(self, _close, self._listeners)
                for listener in self._listeners:
                    listener.start()
            if not self._has_waited:
                self._changed.wait_for(
                    lambda: self._master is not None or len(self._answers) == len(self._listeners), ANSWER_S
                )
                self._has_waited = True
            if self._master is None:
                told = list(self._answers.values())
                if told and all(isinstance(answer, TlsReason) for answer in told):
                    raise TlsRefused(f"no sentinel was asked: {told[0]}")
                raise ServerUnavailable(
                    f"no sentinel names the master ({self._reasons()}); check that they run and watch this group"
                )
            return self._master

    def _reasons(self) -> str:
        return ", ".join(f"{node}: {self._answers.get(node, 'no answer')}" for node in self._place.nodes)

    # Called by the threads.

    def note(self, node: Node, answer: Answer | str) -> None:
        """Note what a sentinel said, or why it says nothing."""
        with self._changed:
            self._answers[node] = answer
            left = self._decide()
            self._changed.notify_all()
        self._leave(left)

    def expect(self, master: Node) -> None:
        """Note that a sentinel is about to promote a replica."""
        with self._changed:
            self._expected_until_s = time.monotonic() + PROMOTED_S
            left = self._set_master(master)
        self._leave(left)

    def stop_expecting(self) -> None:
        """Note that a sentinel has given a failover up."""
        with self._changed:
            self._expected_until_s = 0.0
            left = self._decide()
        self._leave(left)

    def _decide(self) -> Address | None:
        answers = [answer for answer in self._answers.values() if isinstance(answer, Answer)]
        if not answers:
            return None
        newest = max(answer.epoch for answer in answers)
        if newest <= self._epoch and time.monotonic() < self._expected_until_s:
            return None
        if newest < self._epoch and 2 * len(answers) <= len(self._place.nodes):
            return None  # sentinels that were cut off do not know the newest configuration
        if newest > self._epoch >= 0:
            # The other sentinels learn of a new configuration up to two seconds later.
            self._expected_until_s = time.monotonic() + PROMOTED_S
        masters = [answer.master for answer in answers if answer.epoch == newest]
        self._epoch = newest
        return self._set_master(max(masters, key=masters.count))

    def _set_master(self, master: Node) -> Address | None:
        """Change the master, and return the old one if it was another."""
        old, new = self._master, Address(self._place.server(master), is_master=True)
        if old == new:
            return None
        self._master = new
        if old is not None:
            _log.info("master_changed", address=str(new), before=str(old))
        return old

    def _leave(self, old: Address | None) -> None:
        if old is None:
            return
        with self._changed:
            leavers = list(self._leavers)
        for leaver in leavers:
            leaver.leave(old)


class _Listener:
    """A thread that asks one sentinel and listens to it, until the locator is gone."""

    def __init__(self, locator: SentinelLocator, node: Node, place: RedisUrl) -> None:
        self._locator, self._node, self._service = weakref.ref(locator), node, place.service
        self._pool = _pool(place, node)
        self._question = pack(("SENTINEL", "MASTER", place.service)) + pack(
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", place.service)
        )
        self._woken, self._wake = socket.socketpair()
        self._wake.settimeout(0)
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"sentinel {self._node}", daemon=True).start()

    def ask(self) -> None:
        """Ask soon; called from any thread."""
        with contextlib.suppress(OSError):  # it is awake already, or has ended
            self._wake.send(b"!")

    def close(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.close()

    def _run(self) -> None:
        while not self._stopped:
            connection = self._pool.make_connection()
            try:
                connection.connect()  # type: ignore[no-untyped-call]
                self._listen(connection._sock)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to it
            except Exception as failure:  # noqa: BLE001 - without the thread a process would miss the next master
                self._give_up(failure)
            finally:
                connection.disconnect()  # type: ignore[no-untyped-call]
            time.sleep(DOUBTED_S)  # doubts do not shorten it
            self._wait(None, ASK_EVERY_S - DOUBTED_S)
        self._woken.close()

    def _tell(self, what: Callable[[SentinelLocator], None]) -> None:
        if (locator := self._locator()) is not None:
            what(locator)

    def _give_up(self, failure: Exception) -> None:
        self._tell(lambda locator: locator.note(self._node, _reason(failure)))

    def _listen(self, sentinel: socket.socket) -> None:
        """Ask and listen until the connection fails."""
        reader, answers = hiredis.Reader(notEnoughData=_NOTHING), list[Any]()
        sentinel.settimeout(ANSWER_S)
        sentinel.sendall(pack(("PSUBSCRIBE", *_ANNOUNCED)))
        asked_s, open_question, ask = -math.inf, False, True
        while not self._stopped:
            now_s = time.monotonic()
            if open_question and now_s - asked_s >= ANSWER_S:
                raise TimeoutError(f"no answer for {ANSWER_S:g} s")
            pause_s = asked_s + (DOUBTED_S if ask else ASK_EVERY_S) - now_s
            if not open_question and pause_s <= 0:
                sentinel.settimeout(ANSWER_S)
                sentinel.sendall(self._question)
                asked_s, open_question, ask = now_s, True, False
                continue
            ask |= self._wait(sentinel, ANSWER_S if open_question else pause_s)
            for reply in _read(sentinel, reader):
                if isinstance(reply, hiredis.PushNotification):
                    ask |= self._take_news(reply)
                else:
                    answers.append(_checked(reply))
            if len(answers) == 2:
                self._take_answer(*answers)
                answers, open_question = [], False

    def _take_answer(self, known: dict[bytes, bytes], master: Sequence[bytes]) -> None:
        answer = Answer(Node(read_text(master[0]), int(master[1])), int(known[b"config-epoch"]))
        self._tell(lambda locator: locator.note(self._node, answer))

    def _take_news(self, news: Sequence[Any]) -> bool:
        """Handle what the sentinel announces; returns whether to ask it."""
        if news[0] != b"pmessage":
            return False
        channel, words = news[2], read_text(news[3]).split()
        if self._service not in words:
            return False  # of another group
        if channel == _CHOSEN and len(words) >= 6 and words[5] == self._service:
            # slave NAME HOST PORT @ SERVICE HOST PORT
            chosen = Node(words[2], int(words[3]))
            self._tell(lambda locator: locator.expect(chosen))
        elif channel.startswith(b"-"):
            self._tell(lambda locator: locator.stop_expecting())
        return True

    def _wait(self, sentinel: socket.socket | None, seconds: float) -> bool:
        """Wait for data of the sentinel, or for `ask`, which returns True."""
        poll = select.poll()
        for one in (self._woken, sentinel):
            if one is not None:
                poll.register(one, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._woken.fileno() not in ready:
            return False
        self._stopped = self._stopped or not self._woken.recv(4096)
        return True


def _read(sentinel: socket.socket, reader: hiredis.Reader) -> Iterator[Any]:
    sentinel.settimeout(0)
    while True:
        try:
            data = sentinel.recv(65_536)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            break
        if not data:
            raise ConnectionError("the sentinel closed the connection")
        reader.feed(data)
    while (reply := reader.gets()) is not _NOTHING:
        yield reply


def _checked(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    if reply is None:
        raise ConnectionError("it watches no group of this name")
    return reply


def _reason(failure: Exception) -> str:
    if refusal := explain_refusal(failure):
        return TlsReason(refusal)
    return " ".join(str(failure).split()) or type(failure).__name__


def _pool(place: RedisUrl, node: Node) -> ConnectionPool:
    return ConnectionPool.from_url(
        place.sentinel(node),
        socket_connect_timeout=ANSWER_S,
        socket_timeout=ANSWER_S,
        client_name="orc",
        # Announcements and answers over one connection.
        protocol=3,
        driver_info=None,
        retry=Retry(NoBackoff(), 0),
    )


def ask(place: RedisUrl, node: Node, *questions: str) -> list[Any] | str:
    """Ask one sentinel about the group. Blocks.

    Returns:
        The answers, or the errors that the sentinel answered with; why there are none, if it did not answer at all.
    """
    connection = _pool(place, node).make_connection()
    answers: list[Any] = []
    try:
        connection.connect()  # type: ignore[no-untyped-call]
        for question in questions:
            connection.send_command("SENTINEL", question, place.service)  # type: ignore[no-untyped-call]
            try:
                answers.append(connection.read_response())
            except ResponseError as refused:
                answers.append(refused)
    except (OSError, RedisError) as failure:
        return _reason(failure)
    finally:
        connection.disconnect()  # type: ignore[no-untyped-call]
    return answers


def _close(listeners: Sequence[_Listener]) -> None:
    for listener in listeners:
        listener.close()


_shared: weakref.WeakValueDictionary[str, SentinelLocator] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def follow(place: RedisUrl) -> SentinelLocator:
    """Return the locator of this process for a group."""
    with _sharing:
        locator = _shared.get(place.url)
        if locator is None:
            locator = _shared[place.url] = SentinelLocator(place)
        return locator


def _reset_in_child() -> None:
    global _sharing  # noqa: PLW0603 - another thread may have held it at the time of the fork
    _sharing = threading.Lock()
    for locator in list(_shared.values()):
        locator.reset()


os.register_at_fork(after_in_child=_reset_in_child)
