"""Records the calls of a handler's context instead of sending them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.payload import decode_json
from orchestrator.tasks.model import EmitStatus, Progress
from orchestrator.testing.offline import offline_services
from orchestrator.workers.runtime.active_commands import WorkerCommands
from orchestrator.workers.runtime.attempt_traces import AttemptTraces
from orchestrator.workers.runtime.emitter import Emitter
from orchestrator.workers.runtime.parts import ChildClient, WorkerParts
from orchestrator.workers.runtime.process_groups import ProcessGroups
from orchestrator.workers.runtime.suspects import Suspects
from orchestrator.workers.runtime.timings import AttemptTimings
from orchestrator.workers.runtime.waiting import Waiting
from orchestrator.workers.testing.children import ScriptedClient
from orchestrator.workers.testing.offline_locks import OfflineLocking
from orchestrator.workers.testing.scripted_record import ScriptedRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import EmitRow
    from orchestrator.tasks.submission import Submission
    from orchestrator.workers.runtime.completer import Completer
    from orchestrator.workers.runtime.in_flight import InFlight
    from orchestrator.workers.testing.children import Children
    from orchestrator.workers.testing.scripted_record import ScriptedAnswers


WORKER: Final = "no-worker"


class Recording:
    """Records the actions of one attempt.

    Attributes:
        services: services without a server.
        progress: reported progress, in order.
        output: emitted chunks, as readers get them.
        emitter: records progress and output.
        children: records child tasks.
        record: has the answers to questions and the results of `ctx.once`.
    """

    def __init__(
        self,
        settings: Settings,
        children: Children | None,
        *,
        answers: ScriptedAnswers = (),
        once: Mapping[str, Any] | None = None,
    ) -> None:
        self.services = offline_services(settings)
        self.progress: list[Progress] = []
        self.output: list[Any] = []
        self.emitter = _RecordingEmitter(self.services, self)
        self.children = ScriptedClient(self.services, children or {})
        self.record = ScriptedRecord(answers, once or {})

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
            locking=OfflineLocking(self.services.settings),
            commands=commands,
            suspects=Suspects(in_flight),
            timings=AttemptTimings(),
            client=_ScriptedChildClient(self.services, self.children),
            groups=ProcessGroups(),
            waiting=Waiting(self.services, worker=WORKER),
            traces=AttemptTraces(pool=self.services.keys.pool, worker=WORKER, relation="link"),
        )

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


class _ScriptedChildClient(ChildClient):
    def __init__(self, services: Services, children: ScriptedClient) -> None:
        super().__init__(services)
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
