"""The pool in which is measured: it must be empty before, and is gone afterwards. Other pools are never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import OrchestratorError, StoreError
from orchestrator.services import pool_keys, reach_server
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings

_COUNT: Final = 1000


class PoolInUse(OrchestratorError):
    """The pool is not empty, so it is not ours to fill and to remove."""

    exit_code = 4


async def check_empty(settings: Settings) -> None:
    """See that the pool of these settings has never been used.

    Raises:
        PoolInUse: it has.
        StoreError: Redis does not answer.
    """
    with reach_server(settings) as where:
        async with Store(where, pool_keys(settings), name="bench") as store:
            # Whoever opens a pool leaves its format there.
            if await store.execute("EXISTS", *store.keys.fixed):
                raise PoolInUse(
                    f"pool {settings.pool!r} of {settings.prefix} is in use, and is left alone; "
                    "leave --pool out for one with a name of its own, or name one that nobody uses"
                )


async def remove(settings: Settings) -> int:
    """Remove every key of the pool; answers how many there were.

    Raises:
        StoreError: Redis does not answer.
    """
    with reach_server(settings) as where:
        async with Store(where, pool_keys(settings), name="bench") as store:
            removed, cursor = 0, b"0"
            while True:
                cursor, names = await store.execute("SCAN", cursor, "MATCH", f"{store.keys.stem}*", "COUNT", _COUNT)
                if names:
                    removed += await store.execute("UNLINK", *names)
                if cursor == b"0":
                    return removed


def report_leftovers(settings: Settings, failure: StoreError) -> str:
    """What to do about keys that could not be removed."""
    keys = pool_keys(settings)
    return f"the keys of pool {settings.pool!r} are left ({failure}); remove those that begin with {keys.root}: by hand"
