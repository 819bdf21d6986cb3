"""`python -m tests.chaos`: random faults under load, then a judgement. `make chaos ARGS="--minutes 10 --seed 7"`."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from orchestrator.embedded.server_binary import find_server_binary
from tests.chaos.campaign import Options, run_campaign
from tests.chaos.mutations import MUTATIONS
from tests.chaos.topology import TOPOLOGIES
from tests.faultkit.servers import find_binary_of_line


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of load and faults; judging comes on top")
    parser.add_argument(
        "--longest",
        type=float,
        metavar="SECONDS",
        help="handlers of the slow kinds take from 1 s to so long; default: 10, and 3 in a run of less than 2 minutes",
    )
    parser.add_argument("--seed", type=int, default=None, help="of the dice; by default a new one")
    parser.add_argument(
        "--redis", default="", metavar="LINE", help="a version line such as 7.0, from the PATH; by default the newest"
    )
    parser.add_argument("--topology", choices=TOPOLOGIES, default="single", help="of the servers")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="plant a fault, which the run is to find")
    parser.add_argument("--quiet", action="store_true", help="do not print each fault; timeline.txt has them")
    parser.add_argument("--keep", action="store_true", help="keep logs and histories of a good run too")
    parser.add_argument("--if-there", action="store_true", help="do nothing when there is no such Redis")
    asked = parser.parse_args()
    binary = find_binary_of_line(asked.redis) if asked.redis else find_server_binary()
    if binary is None:
        print(f"no redis-server {asked.redis} is on the PATH")  # noqa: T201 - a command's answer
        return 0 if asked.if_there else 2
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    directory = Path("build/chaos").resolve() / str(seed)
    return run_campaign(
        Options(
            seconds=asked.minutes * 60,
            seed=seed,
            binary=binary,
            directory=directory,
            redis_line=asked.redis,
            longest_s=asked.longest or (10.0 if asked.minutes >= 2 else 3.0),
            topology=asked.topology,
            mutation=asked.mutation,
            quiet=asked.quiet,
            keep=asked.keep,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
