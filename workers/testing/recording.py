"""Records the calls of a handler's context instead of sending them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat.accounts import ChatAccounts
from orchestrator.core.payload import decode_json
from orchestrator.limits.scripts import BlockReply, CallReply, CallStatus
from orchestrator.tasks.model import EmitStatus, Progress
from orchestrator.testing.offline import offline_services
from orchestrator.testing.throw_away import ThrowAway
from orchestrator.workers.runtime.active_commands import WorkerCommands
from orchestrator.workers.runtime.attempt_traces import AttemptTraces
from orchestrator.workers.runtime.emitter import Emitter
from orchestrator.workers.runtime.parts import ChildClient, WorkerParts
from orchestrator.workers.runtime.process_starter import ProcessStarter
from orchestrator.workers.runtime.provider_calls import ProviderCalls
from orchestrator.workers.runtime.suspects import Suspects
from orchestrator.workers.runtime.task_log import TaskLog
from orchestrator.workers.runtime.timings import AttemptTimings
from orchestrator.workers.runtime.waiting import Waiting
from orchestrator.workers.testing.children import ScriptedClient
from orchestrator.workers.testing.offline_locks import OfflineLocking
from orchestrator.workers.testing.scripted_record import ScriptedRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.client import Orchestrator
    from orchestrator.control.commands import Command
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import EmitRow
    from orchestrator.tasks.submission import Submission
    from orchestrator.workers.provider_answers import Told
    from orchestrator.workers.runtime.completer import Completer
    from orchestrator.workers.runtime.in_flight import InFlight
    from orchestrator.workers.testing.children import Children
    from orchestrator.workers.testing.scripted_record import ScriptedAnswers


WORKER: Final = "no-worker"


class Recording:
    """Records the actions of one attempt.

    Args:
        orc: client whose namespace has locks and shared state; by default a new namespace.

    Attributes:
        services: services of locks and shared state, which start a Redis at their first use.
        throw_away: the new namespace without `orc`.
        progress: reported progress, in order.
        output: emitted chunks, as readers get them.
        emitter: records progress and output.
        children: records child tasks.
        record: has the answers to questions, the results of `ctx.once`, and effects.
    """

    def __init__(
        self,
        children: Children | None,
        *,
        orc: Orchestrator | None = None,
        answers: ScriptedAnswers = (),
        once: Mapping[str, Any] | None = None,
        effects: Mapping[str, bytes] | None = None,
    ) -> None:
        self.throw_away: ThrowAway | None = None
        if orc is None:
            self.throw_away = ThrowAway()
            self.services = self.throw_away.services
        else:
            self.services = orc.services
        self._offline = offline = offline_services(self.services.settings)
        self.progress: list[Progress] = []
        self.output: list[Any] = []
        self.emitter = _RecordingEmitter(offline, self)
        self.children = ScriptedClient(offline, children or {})
        self.record = ScriptedRecord(answers, once or {}, effects or {})

    def parts(self, in_flight: InFlight, completer: Completer) -> WorkerParts:
        """Make the parts of a worker without a server."""
        commands = WorkerCommands()
        commands.known_until_s = math.inf
        return WorkerParts(
            worker=WORKER,
            services=self.services,
            in_flight=in_flight,
            completer=completer,
            emitter=self.emitter,
            locking=OfflineLocking(self.services, worker=WORKER),
            accounts=ChatAccounts(self.services.store, self.services.live),
            commands=commands,
            suspects=Suspects(in_flight),
            timings=AttemptTimings(),
            client=_ScriptedChildClient(self.children),
            starter=ProcessStarter(self.services.live),
            waiting=Waiting(self._offline, worker=WORKER),
            traces=AttemptTraces(pool=self.services.keys.pool, worker=WORKER, relation="link"),
            task_log=TaskLog(),
            providers=ProviderCalls(self.services, worker=WORKER),
        )

    @property
    def misuse(self) -> Exception | None:
        """Error of the test or of its machine, which a handler may have caught."""
        no_server = None if self.throw_away is None else self.throw_away.failure
        return self.children.misuse or no_server

    @property
    def submitted(self) -> list[Submission]:
        """Submitted child tasks."""
        return self.children.submitted

    def emitted(self, row: EmitRow) -> None:
        """Record a row that a real emitter would store."""
        value = decode_json(row.data)
        if row.kind == "progress":
            self.progress.append(Progress(*value))
        else:
            self.output.append(value)


class NoPausing:
    """Takes the pauses of a handler without a team, where nothing else waits."""

    async def give(self, command: Command, reason: str) -> None:
        """Do nothing."""

    async def check_limit(self, name: str) -> None:
        """Accept any name."""


class FreeProviders:
    """Admits each call of a provider, because nothing else calls it."""

    def __init__(self, task: str, generation: str) -> None:
        self.attempt = (task, generation)
        self.who, self.hides_texts, self.lease_s = f"task {task}", False, math.inf

    def check(self, name: str, tokens: int) -> None:
        """Accept any name."""

    async def take(self, name: str, call: str, tokens: int) -> CallReply:  # noqa: ARG002 - all are equal
        """Admit the call."""
        return CallReply(CallStatus.TAKEN, 0, 0, "", b"")

    async def settle(self, name: str, call: str, used: int, outcome: str, reason: str) -> None:
        """Do nothing."""

    async def block(self, name: str, told: Told) -> BlockReply:  # noqa: ARG002 - all are equal
        """Return the end."""
        now_ms = round(time.time() * 1000)
        if not told.for_ms and not told.until_ms:
            return BlockReply(0)
        until_ms = told.until_ms or now_ms + told.for_ms
        return BlockReply(until_ms, until_ms - now_ms) if until_ms > now_ms else BlockReply(-1)

    def new_call(self) -> str:
        """Return any id."""
        return "call"

    def holds_tasks(self, name: str) -> bool:  # noqa: ARG002 - no queue
        """Return False."""
        return False


class _ScriptedChildClient(ChildClient):
    def __init__(self, children: ScriptedClient) -> None:
        super().__init__(children.services)
        self._children = children

    async def open(self) -> Orchestrator:
        return self._children

    def last_outage_s(self) -> float:
        return math.inf  # A ServerUnavailable of the test counts as one of the pool's Redis.


class _RecordingEmitter(Emitter):
    def __init__(self, services: Services, recording: Recording) -> None:
        super().__init__(services)
        self._recording = recording

    async def send(self, row: EmitRow) -> EmitStatus:
        self._recording.emitted(row)
        return EmitStatus.OK
