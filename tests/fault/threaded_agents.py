"""An agent whose module starts a thread when the host imports it, as client libraries do."""

from __future__ import annotations

import threading
import time

from orchestrator import Agent
from orchestrator.core.log import get_logger

threaded = Agent("threaded", concurrency=2)
_log = get_logger(__name__)


@threaded.skill
def hold(seconds: float) -> str:
    """Take a while."""
    _log.info("holding")
    time.sleep(seconds)
    return "held"


threading.Thread(target=threading.Event().wait, daemon=True).start()
