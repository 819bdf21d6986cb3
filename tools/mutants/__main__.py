"""`make mutants ARGS="lua …"` or `ARGS="python …"`; docs/internals/mutation-testing.md explains both."""

from __future__ import annotations

import sys

from tools.mutants import lua, python

USAGE = "give `lua` or `python` first; each explains its options with --help"

if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["lua"]:
            lua.main(sys.argv[2:])
        case ["python"]:
            python.main(sys.argv[2:])
        case _:
            raise SystemExit(USAGE)
