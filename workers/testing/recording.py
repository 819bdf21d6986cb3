"""What a handler does through its context, kept in place of being sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.payload import decode_json
from orchestrator.tasks.model import EmitStatus, Progress
from orchestrator.testing.offline import offline_services
from workers.runtime.emitter import Emitter
from workers.testing.children import ScriptedClient
from workers.testing.scripted_record import ScriptedRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import EmitRow
    from orchestrator.tasks.submission import Submission
    from workers.testing.children import Children
    from workers.testing.scripted_record import ScriptedAnswers


class Recording:
    """What one attempt did.

    Attributes:
        services: what its parts stand on.
        progress: in order.
        output: the emitted chunks, as their readers get them.
        emitter: where progress and output go.
        children: where child tasks go.
        record: what people have answered, and what was done once.
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

    async def client(self) -> Orchestrator:
        """The client of a context."""
        return self.children

    @property
    def submitted(self) -> list[Submission]:
        """The child tasks."""
        return self.children.submitted

    def emitted(self, row: EmitRow) -> None:
        """Take what would be stored."""
        value = decode_json(row.data)
        if row.kind == "progress":
            self.progress.append(Progress(*value))
        else:
            self.output.append(value)


class _RecordingEmitter(Emitter):
    def __init__(self, services: Services, recording: Recording) -> None:
        super().__init__(services)
        self._recording = recording

    async def send(self, row: EmitRow) -> EmitStatus:
        self._recording.emitted(row)
        return EmitStatus.OK
