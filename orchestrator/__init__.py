"""Coordinates teams of agents through Redis. Public names are loaded when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agent_state.states import Agents as Agents
    from orchestrator.agent_state.states import AgentState as AgentState
    from orchestrator.agents.descriptions import SkillDescription as SkillDescription
    from orchestrator.agents.skills import SkillInfo as SkillInfo
    from orchestrator.agents.skills import SkillSummary as SkillSummary
    from orchestrator.agents.skills import SkillVersionInfo as SkillVersionInfo
    from orchestrator.agents.stats import AttemptStats as AttemptStats
    from orchestrator.agents.timings import Durations as Durations
    from orchestrator.agents.timings import Timings as Timings
    from orchestrator.boards.boards import Board as Board
    from orchestrator.boards.boards import BoardView as BoardView
    from orchestrator.boards.boards import Standing as Standing
    from orchestrator.chat.accounts import ChatUsage as ChatUsage
    from orchestrator.chat.chat import Chat as Chat
    from orchestrator.chat.model import AppendedMessages as AppendedMessages
    from orchestrator.chat.model import ChatChange as ChatChange
    from orchestrator.chat.model import ChatHead as ChatHead
    from orchestrator.chat.model import Hydration as Hydration
    from orchestrator.chat.model import Message as Message
    from orchestrator.chat.model import Position as Position
    from orchestrator.chat.model import StoredMessage as StoredMessage
    from orchestrator.chat.model import Summary as Summary
    from orchestrator.client.admin import Admin as Admin
    from orchestrator.client.admin import Sent as Sent
    from orchestrator.client.client import Orchestrator as Orchestrator
    from orchestrator.client.handle import TaskHandle as TaskHandle
    from orchestrator.client.session import SessionEvent as SessionEvent
    from orchestrator.client.session import SessionHandle as SessionHandle
    from orchestrator.client.shared_config import ConfigChange as ConfigChange
    from orchestrator.client.shared_config import SharedConfig as SharedConfig
    from orchestrator.control.receipts import Receipt as Receipt
    from orchestrator.control.receipts import Receipts as Receipts
    from orchestrator.core.caller_warning import NoAgentWarning as NoAgentWarning
    from orchestrator.core.errors import AnswerRefused as AnswerRefused
    from orchestrator.core.errors import AskExpired as AskExpired
    from orchestrator.core.errors import BackupFailed as BackupFailed
    from orchestrator.core.errors import BudgetExhausted as BudgetExhausted
    from orchestrator.core.errors import ChatConflict as ChatConflict
    from orchestrator.core.errors import ChatError as ChatError
    from orchestrator.core.errors import ChatFull as ChatFull
    from orchestrator.core.errors import ChildFailed as ChildFailed
    from orchestrator.core.errors import CommandRefused as CommandRefused
    from orchestrator.core.errors import ConfigError as ConfigError
    from orchestrator.core.errors import DamagedBackup as DamagedBackup
    from orchestrator.core.errors import DamagedData as DamagedData
    from orchestrator.core.errors import EffectChanged as EffectChanged
    from orchestrator.core.errors import EffectUnknown as EffectUnknown
    from orchestrator.core.errors import EmbeddingError as EmbeddingError
    from orchestrator.core.errors import Fenced as Fenced
    from orchestrator.core.errors import FormatMismatch as FormatMismatch
    from orchestrator.core.errors import InvalidInput as InvalidInput
    from orchestrator.core.errors import JoinRefused as JoinRefused
    from orchestrator.core.errors import JoinTimeout as JoinTimeout
    from orchestrator.core.errors import KeyConflict as KeyConflict
    from orchestrator.core.errors import LaneBusy as LaneBusy
    from orchestrator.core.errors import LeaseLapsed as LeaseLapsed
    from orchestrator.core.errors import LockBusy as LockBusy
    from orchestrator.core.errors import LockError as LockError
    from orchestrator.core.errors import LockLost as LockLost
    from orchestrator.core.errors import MemoryFull as MemoryFull
    from orchestrator.core.errors import NoAgent as NoAgent
    from orchestrator.core.errors import NotDurable as NotDurable
    from orchestrator.core.errors import NotFound as NotFound
    from orchestrator.core.errors import NotHeld as NotHeld
    from orchestrator.core.errors import Occupied as Occupied
    from orchestrator.core.errors import OrchestratorError as OrchestratorError
    from orchestrator.core.errors import PayloadChanged as PayloadChanged
    from orchestrator.core.errors import PayloadError as PayloadError
    from orchestrator.core.errors import PayloadMissing as PayloadMissing
    from orchestrator.core.errors import PayloadStoreUnavailable as PayloadStoreUnavailable
    from orchestrator.core.errors import QuestionChanged as QuestionChanged
    from orchestrator.core.errors import QueueFull as QueueFull
    from orchestrator.core.errors import RestoreRefused as RestoreRefused
    from orchestrator.core.errors import ScheduleExists as ScheduleExists
    from orchestrator.core.errors import SecondaryStoreError as SecondaryStoreError
    from orchestrator.core.errors import ServerFull as ServerFull
    from orchestrator.core.errors import ServerRefused as ServerRefused
    from orchestrator.core.errors import ServerUnavailable as ServerUnavailable
    from orchestrator.core.errors import StateConflict as StateConflict
    from orchestrator.core.errors import Stopped as Stopped
    from orchestrator.core.errors import StoreError as StoreError
    from orchestrator.core.errors import SubjectErased as SubjectErased
    from orchestrator.core.errors import SubmitRefused as SubmitRefused
    from orchestrator.core.errors import TaskCancelled as TaskCancelled
    from orchestrator.core.errors import TaskError as TaskError
    from orchestrator.core.errors import TaskExpired as TaskExpired
    from orchestrator.core.errors import TaskFailed as TaskFailed
    from orchestrator.core.errors import TenantFull as TenantFull
    from orchestrator.core.errors import TlsRefused as TlsRefused
    from orchestrator.core.errors import UnreadableValue as UnreadableValue
    from orchestrator.core.errors import UpgradeRefused as UpgradeRefused
    from orchestrator.core.errors import UpgradeUnfinished as UpgradeUnfinished
    from orchestrator.core.errors import VersionConflict as VersionConflict
    from orchestrator.core.errors import WaitCycle as WaitCycle
    from orchestrator.core.errors import WorkspaceError as WorkspaceError
    from orchestrator.core.errors import WorkspaceFull as WorkspaceFull
    from orchestrator.embedding.hashed_ngrams import HashedNgrams as HashedNgrams
    from orchestrator.embedding.model import Embedder as Embedder
    from orchestrator.embedding.wordllama import WordLlamaEmbedder as WordLlamaEmbedder
    from orchestrator.erasure.model import ErasureReport as ErasureReport
    from orchestrator.erasure.subjects import Subjects as Subjects
    from orchestrator.extraction.model import Extraction as Extraction
    from orchestrator.extraction.model import Extractor as Extractor
    from orchestrator.extraction.model import Fact as Fact
    from orchestrator.extraction.model import Provenance as Provenance
    from orchestrator.extraction.model import Turn as Turn
    from orchestrator.extraction.model import TurnMessage as TurnMessage
    from orchestrator.extraction.rules import Rule as Rule
    from orchestrator.extraction.rules import RuleExtractor as RuleExtractor
    from orchestrator.limits.limits import Decision as Decision
    from orchestrator.limits.limits import Limits as Limits
    from orchestrator.locks.memory import LockedMemory as LockedMemory
    from orchestrator.locks.memory import MemoryBackend as MemoryBackend
    from orchestrator.locks.model import LockInfo as LockInfo
    from orchestrator.locks.named import Lease as Lease
    from orchestrator.locks.named import Locks as Locks
    from orchestrator.memory.forgetting import ForgetPreview as ForgetPreview
    from orchestrator.memory.forgetting import Forgotten as Forgotten
    from orchestrator.memory.forgetting import RecordFilter as RecordFilter
    from orchestrator.memory.memory import Memory as Memory
    from orchestrator.memory.model import MemoryQuery as MemoryQuery
    from orchestrator.memory.model import Recall as Recall
    from orchestrator.memory.model import Record as Record
    from orchestrator.memory.model import RecordAccess as RecordAccess
    from orchestrator.memory.model import RecordChange as RecordChange
    from orchestrator.memory.model import StoredRecord as StoredRecord
    from orchestrator.memory.model import ValueChange as ValueChange
    from orchestrator.memory.states import StateMemory as StateMemory
    from orchestrator.memory.tiers import TransitionReport as TransitionReport
    from orchestrator.memory.upkeep import MemoryStats as MemoryStats
    from orchestrator.memory.upkeep import SweepReport as SweepReport
    from orchestrator.memory.upkeep import TierStats as TierStats
    from orchestrator.schedules.api import Schedules as Schedules
    from orchestrator.schedules.model import Schedule as Schedule
    from orchestrator.secondary.json_lines import JsonLinesStore as JsonLinesStore
    from orchestrator.secondary.model import SecondaryStore as SecondaryStore
    from orchestrator.secondary.model import StoredItem as StoredItem
    from orchestrator.secondary.sqlite import SqliteStore as SqliteStore
    from orchestrator.simulations.simulation import Simulation as Simulation
    from orchestrator.simulations.simulation import StateRef as StateRef
    from orchestrator.tasks.effects import TaskEffect as TaskEffect
    from orchestrator.tasks.ends import EndedTask as EndedTask
    from orchestrator.tasks.families import SessionSummary as SessionSummary
    from orchestrator.tasks.history import AttemptOutcome as AttemptOutcome
    from orchestrator.tasks.history import TaskAttempt as TaskAttempt
    from orchestrator.tasks.model import AnswerStatus as AnswerStatus
    from orchestrator.tasks.model import CancelStatus as CancelStatus
    from orchestrator.tasks.model import OutputChunk as OutputChunk
    from orchestrator.tasks.model import Progress as Progress
    from orchestrator.tasks.model import Question as Question
    from orchestrator.tasks.model import RequeueStatus as RequeueStatus
    from orchestrator.tasks.model import TaskEvent as TaskEvent
    from orchestrator.tasks.model import TaskState as TaskState
    from orchestrator.tasks.queries import TaskRow as TaskRow
    from orchestrator.tasks.selecting import TaskFilter as TaskFilter
    from orchestrator.tasks.selecting import TaskPage as TaskPage
    from orchestrator.tasks.submission import Submission as Submission
    from orchestrator.why.model import Cause as Cause
    from orchestrator.why.model import TaskInfo as TaskInfo
    from orchestrator.why.model import TaskStatus as TaskStatus
    from orchestrator.why.model import Why as Why
    from orchestrator.workers.agent import Agent as Agent
    from orchestrator.workers.agent import CallNext as CallNext
    from orchestrator.workers.agent import Middleware as Middleware
    from orchestrator.workers.context import TaskContext as TaskContext
    from orchestrator.workers.effects import EffectDone as EffectDone
    from orchestrator.workers.effects import EffectNotDone as EffectNotDone
    from orchestrator.workers.joining import Joined as Joined
    from orchestrator.workers.retrying import Backoff as Backoff
    from orchestrator.workers.run import run as run
    from orchestrator.workers.signals import Asked as Asked
    from orchestrator.workers.signals import Joining as Joining
    from orchestrator.workers.signals import Reject as Reject
    from orchestrator.workers.signals import Retry as Retry
    from orchestrator.workers.signals import Snooze as Snooze
    from orchestrator.workers.skill import Skill as Skill
    from orchestrator.workspace.model import DELETE as DELETE
    from orchestrator.workspace.model import AgentEntry as AgentEntry
    from orchestrator.workspace.model import Appended as Appended
    from orchestrator.workspace.model import Applied as Applied
    from orchestrator.workspace.model import Change as Change
    from orchestrator.workspace.model import Counted as Counted
    from orchestrator.workspace.model import Delete as Delete
    from orchestrator.workspace.model import Directive as Directive
    from orchestrator.workspace.model import LogEntry as LogEntry
    from orchestrator.workspace.model import Patched as Patched
    from orchestrator.workspace.model import Replay as Replay
    from orchestrator.workspace.model import Snapshot as Snapshot
    from orchestrator.workspace.model import StateEntry as StateEntry
    from orchestrator.workspace.model import Versioned as Versioned
    from orchestrator.workspace.model import WorkspaceEvent as WorkspaceEvent
    from orchestrator.workspace.scratch import Scratch as Scratch
    from orchestrator.workspace.workspace import Workspace as Workspace
    from orchestrator.workspace.workspace import WorkspaceView as WorkspaceView


if not TYPE_CHECKING:  # else every name, also a misspelt one, would be Any

    def __getattr__(name: str) -> Any:
        from orchestrator.core.public_names import load

        return load(__name__, name)


def __dir__() -> list[str]:
    from orchestrator.core.public_names import homes

    return sorted({*globals(), *homes(__name__)})
