"""Every script of locks stays in its scope: on a server in cluster mode, and as a user who may reach nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.locks import scripts
from orchestrator.locks.model import LockProof, new_nonce
from orchestrator.store.script_files import all_scripts
from tests.faultkit.servers import cluster_server
from tests.lua.scope import Scope, task_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer


def play(scope: Scope) -> set[str]:
    """Run every script, so that each kind of key is written; the names of the scripts that ran."""
    ran: set[str] = set()
    call = scope.call

    def noted(made: Call[object]) -> object:
        ran.add(made.script)
        return call(made)

    scope.call = noted  # type: ignore[method-assign, assignment]
    first, second, task = new_nonce(), new_nonce(), task_id()
    scope.take(nonce=first)
    scope.take(nonce=second, wait_ms=5000)
    scope.drop("lock:n", first)
    scope.take(nonce=second, woken=True)
    taken = scope.claim("exec", task)
    scope.claim(f"exec:{task}", task)
    scope.claim("exec", task_id(), wait_ms=1000)
    scope.call(scripts.await_for(LockProof(scope.keys, "exec", taken.value), pool="p", tasks=[task_id()]))
    scope.call(scripts.enter(scope.keys, task=task_id(), nonce=new_nonce(), wait_ms=1000))
    scope.renew("exec", taken.value)
    scope.peek()
    scope.free("exec", task, "10")
    return ran


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One server that is a whole cluster."""
    with cluster_server() as server:
        yield server


@pytest.mark.parametrize(("kind", "id_"), [("session", "}:{pool:q} ä"), ("agent", "ed"), ("locks", "default")])
def test_one_slot(cluster: RedisServer, kind: str, id_: str) -> None:
    """The server refuses keys of other slots; every key that was written lies in the slot of the scope."""
    scope = Scope(cluster.url, "slots:c:t", kind, id_)
    ours = {name for name in all_scripts() if name.startswith("locks/")}
    assert play(scope) == ours
    written = [name for name in scope.names() if name.startswith(f"{scope.keys.root}:")]
    assert {scope.store.execute("CLUSTER", "KEYSLOT", name) for name in written} == {
        scope.store.execute("CLUSTER", "KEYSLOT", scope.keys.root)
    }
    assert len(written) >= 8
    scope.close()


@pytest.mark.every_server
def test_nothing_outside_is_touched(redis_server: RedisServer, prefix: str) -> None:
    """As a user who may reach the keys of one scope alone, everything works; another scope is refused (twin)."""
    with redis_server.client() as admin:
        user = f"u{new_nonce()}"
        pattern = f"~{prefix}:{{session:s}}"
        admin.execute_command("ACL", "SETUSER", user, "on", "nopass", "+@all", pattern, f"{pattern}:*")
        mine, other = Scope(redis_server.url, prefix, "session", "s"), Scope(redis_server.url, prefix, "session", "t")
        try:
            for scope in (mine, other):
                scope.store.execute("AUTH", user, "x")
            play(mine)
            with pytest.raises(ServerRefused, match=r"(?i)permission"):
                play(other)
        finally:
            mine.close()
            other.close()
            admin.execute_command("ACL", "DELUSER", user)
