"""Coordinates teams of agents through Redis. Public names are loaded when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.client.client import Orchestrator as Orchestrator
    from orchestrator.client.handle import TaskHandle as TaskHandle
    from orchestrator.client.submission import Submission as Submission
    from orchestrator.core.errors import CommandRefused as CommandRefused
    from orchestrator.core.errors import AnswerRefused as AnswerRefused
    from orchestrator.core.errors import AskExpired as AskExpired
    from orchestrator.core.errors import ConfigError as ConfigError
    from orchestrator.core.errors import Fenced as Fenced
    from orchestrator.core.errors import FormatMismatch as FormatMismatch
    from orchestrator.core.errors import InvalidInput as InvalidInput
    from orchestrator.core.errors import KeyConflict as KeyConflict
    from orchestrator.core.errors import LaneBusy as LaneBusy
    from orchestrator.core.errors import NotFound as NotFound
    from orchestrator.core.errors import OrchestratorError as OrchestratorError
    from orchestrator.core.errors import QuestionChanged as QuestionChanged
    from orchestrator.core.errors import QueueFull as QueueFull
    from orchestrator.core.errors import ServerFull as ServerFull
    from orchestrator.core.errors import ServerRefused as ServerRefused
    from orchestrator.core.errors import ServerUnavailable as ServerUnavailable
    from orchestrator.core.errors import Stopped as Stopped
    from orchestrator.core.errors import StoreError as StoreError
    from orchestrator.core.errors import SubmitRefused as SubmitRefused
    from orchestrator.core.errors import TaskCancelled as TaskCancelled
    from orchestrator.core.errors import TaskError as TaskError
    from orchestrator.core.errors import TaskExpired as TaskExpired
    from orchestrator.core.errors import TaskFailed as TaskFailed
    from orchestrator.tasks.causes import Cause as Cause
    from orchestrator.tasks.causes import Why as Why
    from orchestrator.tasks.model import AnswerStatus as AnswerStatus
    from orchestrator.tasks.model import CancelStatus as CancelStatus
    from orchestrator.tasks.model import OutputChunk as OutputChunk
    from orchestrator.tasks.model import Progress as Progress
    from orchestrator.tasks.model import Question as Question
    from orchestrator.tasks.model import ReviveStatus as ReviveStatus
    from orchestrator.tasks.model import TaskEvent as TaskEvent
    from orchestrator.tasks.model import TaskInfo as TaskInfo
    from orchestrator.tasks.model import TaskState as TaskState
    from orchestrator.tasks.model import TaskStatus as TaskStatus
    from orchestrator.tasks.selecting import TaskFilter as TaskFilter

__all__ = [
    "AnswerRefused",
    "AnswerStatus",
    "AskExpired",
    "CancelStatus",
    "Cause",
    "CommandRefused",
    "ConfigError",
    "Fenced",
    "FormatMismatch",
    "InvalidInput",
    "KeyConflict",
    "LaneBusy",
    "NotFound",
    "Orchestrator",
    "OrchestratorError",
    "OutputChunk",
    "Progress",
    "Question",
    "QuestionChanged",
    "QueueFull",
    "ReviveStatus",
    "ServerFull",
    "ServerRefused",
    "ServerUnavailable",
    "Stopped",
    "StoreError",
    "Submission",
    "SubmitRefused",
    "TaskCancelled",
    "TaskError",
    "TaskEvent",
    "TaskExpired",
    "TaskFailed",
    "TaskFilter",
    "TaskHandle",
    "TaskInfo",
    "TaskState",
    "TaskStatus",
    "Why",
]

_HOMES = {
    "AnswerStatus": "orchestrator.tasks.model",
    "CancelStatus": "orchestrator.tasks.model",
    "Cause": "orchestrator.tasks.causes",
    "Orchestrator": "orchestrator.client.client",
    "OutputChunk": "orchestrator.tasks.model",
    "Progress": "orchestrator.tasks.model",
    "Question": "orchestrator.tasks.model",
    "ReviveStatus": "orchestrator.tasks.model",
    "Submission": "orchestrator.client.submission",
    "TaskEvent": "orchestrator.tasks.model",
    "TaskFilter": "orchestrator.tasks.selecting",
    "TaskHandle": "orchestrator.client.handle",
    "TaskInfo": "orchestrator.tasks.model",
    "TaskState": "orchestrator.tasks.model",
    "TaskStatus": "orchestrator.tasks.model",
    "Why": "orchestrator.tasks.causes",
}


if not TYPE_CHECKING:  # else every name, also a misspelt one, would be Any

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, "orchestrator.core.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
