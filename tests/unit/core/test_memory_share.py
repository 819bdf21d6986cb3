"""orchestrator/embedded/memory_share.py: the bound of the embedded server."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.embedded.memory_share import LEAST_BYTES, choose_maxmemory, machine_bytes


def test_half_of_the_machine() -> None:
    """Without a setting it is half of the memory that processes may use."""
    assert int(choose_maxmemory({})) == max(LEAST_BYTES, machine_bytes() // 2)


@pytest.mark.parametrize("given", ["0", "2gb", "512MB", "1000000"])
def test_a_size_of_the_environment(given: str) -> None:
    """Sizes as Redis writes them, and 0 for none."""
    assert choose_maxmemory({"ORC_DATA_MAXMEMORY": given}) == given


@pytest.mark.parametrize("given", ["much", "-1", "2 gb", "1e9", "50%"])
def test_no_size(given: str) -> None:
    """What Redis would refuse is an error of the configuration."""
    with pytest.raises(ConfigError, match="ORC_DATA_MAXMEMORY"):
        choose_maxmemory({"ORC_DATA_MAXMEMORY": given})
