"""Names the oldest patch of each line of Redis and Valkey that has all published security fixes.

Sources, read on 24 November 2026: the release notes of redis/redis and valkey-io/valkey, the security updates of
docker-library/official-images (22312 and 22078 for Redis), and the changelog of Debian's package redis.

The faults behind the floors: authenticated clients run code in the server (CVE-2025-49844 and CVE-2026-23631 in Lua,
CVE-2026-23479 when a blocked client is evicted, CVE-2026-25243 and CVE-2026-66373 in RESTORE), TLS connections that are
used after their end (CVE-2026-81934 and CVE-2026-56684), and key permissions of ACLs that can be avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, warning
from orchestrator.store.server_info import REDIS, VALKEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding

FLOORS: Final[Mapping[str, Mapping[tuple[int, int], int | None]]] = {
    REDIS: {
        (7, 0): None,
        (7, 2): 16,
        (7, 4): 11,
        (8, 0): None,
        (8, 2): 10,
        (8, 4): 6,
        (8, 6): 7,
        (8, 8): 3,
        (8, 10): 2,
    },
    VALKEY: {(7, 2): 14, (8, 0): 10, (8, 1): 9, (9, 0): 5, (9, 1): 1},
}
"""The first patch with all fixes, by product and line; None: the line has ended without some of them."""
DEBIAN: Final = "Debian 12 repairs its own package: 5:7.0.15-1~deb12u10 or newer in `dpkg -s redis-server` is enough"


async def check_known_faults(context: CheckContext) -> list[DoctorFinding]:
    """Compare the version with the first one of its line that has all security fixes."""
    info = context.info
    floors = FLOORS.get(info.product, {})
    numbers = [int(part) for part in info.version.split(".") if part.isdigit()]
    if len(numbers) != 3:
        return [ok("server-faults", "unknown: the server does not tell its version")]
    major, minor, patch = numbers
    if (major, minor) not in floors:
        return [ok("server-faults", f"unknown for {info.name}: no line of {info.product} that this program knows")]
    floor = floors[major, minor]
    if floor is not None and patch >= floor:
        return [ok("server-faults", f"{info.name} has the security fixes of its line")]
    found = f"{info.name} has known faults, by which a client that may log in can crash the server or run code in it"
    if context.settings.redis.url is None:
        return [ok("server-faults", f"{found}; only programs of this user reach the embedded server")]
    return [warning("server-faults", found, _fix(info.product, (major, minor), floor))]


def _fix(product: str, line: tuple[int, int], floor: int | None) -> str:
    if floor is not None:
        return f"install {product} {line[0]}.{line[1]}.{floor} or newer"
    best_line, best = [(line, patch) for line, patch in FLOORS[product].items() if patch is not None][-1]
    fix = f"install a line of {product} that is maintained, such as {best_line[0]}.{best_line[1]}.{best}"
    return f"{fix}; {DEBIAN}" if line == (7, 0) else fix
