"""Times the GETs of a client in a process of its own: `python -m benchmarks.waits_of_others URL`.

Each line of the input is a number of seconds; the answer is a line of JSON with percentiles in milliseconds.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Final

from redis import Redis

_PAUSE_S: Final = 0.001


def main(url: str) -> None:
    """Answer until the input ends."""
    with Redis.from_url(url) as client:
        for line in sys.stdin:
            print(json.dumps(waits(client, float(line))), flush=True)


def waits(client: Redis, seconds: float) -> dict[str, float]:
    """Send single GETs with pauses, and return percentiles of their times."""
    taken_ms, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends:
        began_s = time.perf_counter()
        client.get("no such key")
        taken_ms.append((time.perf_counter() - began_s) * 1000)
        time.sleep(_PAUSE_S)
    taken_ms.sort()
    return {name: taken_ms[math.ceil(share * len(taken_ms)) - 1] for name, share in (("p50", 0.5), ("p99.5", 0.995))}


if __name__ == "__main__":
    main(sys.argv[1])
