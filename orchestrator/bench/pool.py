"""Checks that the pool of `orc bench` is empty, and removes its keys afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import OrchestratorError, StoreError
from orchestrator.services import pool_keys, reach_server
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings

_COUNT: Final = 1000


class PoolInUse(OrchestratorError):
    """The pool has keys already."""

    exit_code = 4


async def check_empty(settings: Settings) -> None:
    """Check that the pool was never used.

    Raises:
        PoolInUse: it has keys.
        StoreError: Redis does not answer.
    """
    with reach_server(settings) as where:
        async with Store(where, pool_keys(settings), name="bench") as store:
            # Opening a pool writes its format there.
            if await store.execute("EXISTS", *store.keys.fixed):
                raise PoolInUse(
                    f"pool {settings.pool!r} of {settings.prefix} is in use and stays as it is; "
                    "leave --pool out for one with a name of its own, or name an unused one"
                )


async def remove(settings: Settings) -> int:
    """Remove every key of the pool and return their number.

    Raises:
        StoreError: Redis does not answer.
    """
    with reach_server(settings) as where:
        async with Store(where, pool_keys(settings), name="bench") as store:
            # A command with a key first, because SCAN goes to the server that has the pool.
            await store.execute("EXISTS", *store.keys.fixed)
            removed, cursor = 0, b"0"
            while True:
                cursor, names = await store.execute("SCAN", cursor, "MATCH", f"{store.keys.stem}*", "COUNT", _COUNT)
                if names:
                    removed += await store.execute("UNLINK", *names)
                if cursor == b"0":
                    return removed


def report_leftovers(settings: Settings, failure: StoreError) -> str:
    """Tell the operator how to remove the keys that are left."""
    keys = pool_keys(settings)
    return f"the keys of pool {settings.pool!r} are left ({failure}); remove those that begin with {keys.root}: by hand"
