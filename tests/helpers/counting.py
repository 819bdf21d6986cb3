"""How many commands a server has run, for tests that count round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis


class CommandCounter:
    """Counts what a server ran since the counter was made, apart from the questions of the counter itself."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._read()

    def _read(self) -> dict[str, int]:
        stats = self._client.info("commandstats")
        assert isinstance(stats, dict)
        return {name.removeprefix("cmdstat_"): values["calls"] for name, values in stats.items()}

    def calls(self) -> dict[str, int]:
        """Calls by command; those inside scripts count too."""
        now = self._read()
        grown = {name: calls - self._before.get(name, 0) for name, calls in now.items()}
        grown["info"] -= 1  # the question itself
        return {name: calls for name, calls in grown.items() if calls}

    def scripts(self) -> int:
        """Scripts run."""
        return self.calls().get("evalsha", 0)
