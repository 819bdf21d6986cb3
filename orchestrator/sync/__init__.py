"""The client for scripts, notebooks and threads: the asyncio client behind calls that block."""

from orchestrator.sync.admin import Admin, Schedules, Sent
from orchestrator.sync.client import Orchestrator
from orchestrator.sync.handle import TaskHandle

__all__ = ["Admin", "Orchestrator", "Schedules", "Sent", "TaskHandle"]
