"""A process that holds a lock, to be killed or frozen: `python -m tests.fault.lock_holder URL PREFIX WHAT`.

`keep` holds the named lock `n` and renews it. `write` and `blind` take the execution lock of a task for a moment, wait
for a line, and then write 10,000 times: guarded by the lock, or not.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.resources import files

from orchestrator import Orchestrator
from orchestrator.locks import scripts
from orchestrator.locks.model import new_nonce
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.script_modules import Modules
from orchestrator.store.store import Endpoint, SyncStore

TTL_MS = 300
WRITES = 10_000
TASK = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
GUARDED = f"""#!lua
local scope, lock, value = KEYS[1], ARGV[1], ARGV[2]
{chr(10).join(Modules(files("orchestrator") / "lua").expand("guarded", ["--@include lock: fenced_by"]))}
if fenced_by(scope, lock, value) then return 0 end
return redis.call('RPUSH', scope .. ':test:doc', ARGV[3])
"""


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def keep(url: str, prefix: str) -> None:
    """Hold until killed."""
    async with Orchestrator(url, prefix=prefix) as orc, orc.locks("session:s", owner="child").hold("n", ttl=1):
        say("held")
        await asyncio.sleep(60)


def write(url: str, prefix: str, *, guarded: bool) -> None:
    """Write when told to, whatever has happened meanwhile."""
    keys = ScopeKeys(prefix, "session", "s")
    store = SyncStore(Endpoint.at(url), PoolKeys(prefix, "p"), name="holder")
    lock = f"exec:{TASK}"
    taken = store.call(scripts.claim(keys, lock=lock, task=TASK, generation="10", nonce=new_nonce(), ttl_ms=TTL_MS))
    sha = store.execute("SCRIPT", "LOAD", GUARDED)
    say("held")
    sys.stdin.readline()
    done = 0
    for number in range(WRITES):
        if guarded:
            done += bool(store.execute("EVALSHA", sha, 1, keys.root, lock, taken.value, number))
        else:
            done += bool(store.execute("RPUSH", keys.key("test:doc"), number))
    say(str(done))


if __name__ == "__main__":
    where, namespace, what = sys.argv[1:]
    if what == "keep":
        asyncio.run(keep(where, namespace))
    else:
        write(where, namespace, guarded=what == "write")
