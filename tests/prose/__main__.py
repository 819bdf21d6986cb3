"""Reports words that the prose rule rules out: `python -m tests.prose [PATH…]`. Exits with 1 if it finds any."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.prose.checks import findings

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Check the given files, or all product code, scripts and pages."""
    found = list(findings(ROOT, [Path(name) for name in sys.argv[1:]]))
    for one in found:
        sys.stdout.write(f"{one.path}:{one.line}: {one.problem}\n")
    if found:
        sys.stdout.write(f"{len(found)} sentences to rewrite; CONTRIBUTING.md has the rule and examples\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
