"""Prints the folder that `orc demo` would audit, or the error: `python -m orchestrator.workers.demo [PATH]`."""

from __future__ import annotations

import sys

from orchestrator.core.errors import OrchestratorError
from orchestrator.workers.demo.source import check_tree, default_tree


def main(arguments: list[str]) -> int:
    """Print the folder. Returns 2 for a folder that cannot be used, 3 for one without Python files."""
    try:
        sys.stdout.write(f"{check_tree(arguments[0] if arguments else default_tree())}\n")
    except OrchestratorError as refused:
        sys.stderr.write(f"error: {str(refused).replace('; ', ' — ', 1)}\n")
        return refused.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
