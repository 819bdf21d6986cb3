"""Which versions of the server the doctor warns about."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.core.settings import Settings
from orchestrator.doctor.context import CheckContext
from orchestrator.doctor.findings import DoctorFinding, Severity
from orchestrator.doctor.known_faults import FLOORS, check_known_faults
from orchestrator.store.server_info import REDIS, VALKEY, read_info


async def looked_at(product: str, version: str, *, url: str | None = "redis://10.0.0.5/0") -> DoctorFinding:
    """Return the finding about a server that says it is this one."""
    told = f"redis_version:{version}" if product == REDIS else f"redis_version:7.2.4\nvalkey_version:{version}"
    settings = Settings.model_validate({"redis": {"url": url}})
    (found,) = await check_known_faults(CheckContext(settings, cast("Any", None), read_info(told), {}))
    return found


@pytest.mark.parametrize(
    ("product", "version", "fixed"),
    [
        (REDIS, "7.2.15", "install Redis 7.2.16 or newer"),
        (REDIS, "8.2.3", "install Redis 8.2.10 or newer"),
        (REDIS, "8.6.2", "install Redis 8.6.7 or newer"),
        (REDIS, "8.0.6", "a line of Redis that is maintained, such as 8.10.2"),
        (VALKEY, "8.1.8", "install Valkey 8.1.9 or newer"),
        (VALKEY, "9.0.0", "install Valkey 9.0.5 or newer"),
    ],
)
async def test_older_patches(product: str, version: str, fixed: str) -> None:
    """A patch below the floor of its line is a warning that names the first repaired one."""
    found = await looked_at(product, version)
    assert found.severity is Severity.WARNING
    assert f"{product} {version} has known faults" in found.found
    assert fixed in found.fix


@pytest.mark.parametrize("product", FLOORS)
async def test_repaired_versions(product: str) -> None:
    """The floor itself and everything above it are well; lines that the table does not know are unknown."""
    for (major, minor), floor in FLOORS[product].items():
        for patch in [] if floor is None else [floor, floor + 1]:
            assert (await looked_at(product, f"{major}.{minor}.{patch}")).found.endswith(
                "has the security fixes of its line"
            )
    for version in ("7.1.0", "99.0.0", "255.255.255", "?", "8.2", "x.y.z"):
        found = await looked_at(product, version)
        assert (found.severity, found.found[:7]) == (Severity.OK, "unknown")


async def test_a_distribution_that_repairs_a_version() -> None:
    """Debian's 7.0.15 does not tell its patch: the warning says how to look."""
    found = await looked_at(REDIS, "7.0.15")
    assert "5:7.0.15-1~deb12u10 or newer in `dpkg -s redis-server` is enough" in found.fix


async def test_the_embedded_server() -> None:
    """Only programs of the same user reach it, who could replace it as well."""
    found = await looked_at(REDIS, "8.2.3", url=None)
    assert (found.severity, "only programs of this user" in found.found) == (Severity.OK, True)
