"""The blocking client for scripts, notebooks and threads, made from the asynchronous one."""

from orchestrator.sync import blocking

__all__ = list(blocking.CLASSES)
globals().update(blocking.CLASSES)
