"""`python -m orchestrator`: the same as `orc`."""

import sys

from orchestrator.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
