"""The client for scripts, notebooks and threads: the asyncio client behind calls that block."""

from orchestrator.sync.client import Orchestrator
from orchestrator.sync.handle import TaskHandle

__all__ = ["Orchestrator", "TaskHandle"]
