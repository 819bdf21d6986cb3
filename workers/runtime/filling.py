"""Puts the results of other tasks of a flow into the arguments of a task, before its handler starts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import OrchestratorError, StoreError
from orchestrator.core.together import read_at_once
from orchestrator.payloads.payloads import AT_ONCE, argument_caps, result_caps
from orchestrator.payloads.reference import is_reference, unpack_reference
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.records import TaskRecord, read_each
from orchestrator.tasks.values import is_apart, read_values, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.services import Services
    from orchestrator.tasks.model import Envelope, ResultPlace

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the arguments of a task with the results that they take, at most, unless one value may be larger."""
_NULL: Final = b"null"
ENDS: Final = {
    TaskState.DEAD: "is a dead letter",
    TaskState.CANCELLED: "was cancelled",
    TaskState.EXPIRED: "has expired",
}
"""What became of a task that has ended without a result."""


class NotFilled(OrchestratorError):
    """A result that the arguments of a task take is missing, or the results are too large together."""


async def fill_arguments(services: Services, task: str, envelope: Envelope) -> bytes | None:
    """Return the arguments with the results that belong into them; None if the record of the task is gone.

    Reads all results in one round trip; those that are stored apart from their records in a second one.

    Raises:
        NotFilled: a result is missing, and no default takes its place; or it is of a task after which this one does not
            run; or the arguments would be too large with all results.
        PayloadError: the payload store did not return a result.
        StoreError: Redis does not answer, or refuses.
    """
    store, wanted = services.store, dict.fromkeys(reference.task for reference in envelope.results)
    retry_for_s = services.settings.redis.command_timeout_s
    records = await store.read_with_retry(
        lambda: read_each(store, [*wanted, task], "state", "result", "after"), retry_for_s=retry_for_s
    )
    own = records[task]
    if isinstance(own, StoreError):
        raise own
    if not own.exists:
        return None
    before = {word.removesuffix("+") for word in own.predecessors}
    if foreign := [id_ for id_ in wanted if id_ not in before]:
        raise NotFilled(f"its arguments take the result of task {foreign[0]}, after which it does not run")
    stored = _stored({id_: records[id_] for id_ in wanted})
    _check_size(services, envelope, stored, records)
    return _filled(envelope, await _values(services, stored), records)


def _stored(records: Mapping[str, TaskRecord | StoreError]) -> dict[str, bytes]:
    """Return the results of the tasks that have one, or what their records have in place of large ones."""
    found: dict[str, bytes] = {}
    for id_, record in records.items():
        if isinstance(record, StoreError):
            raise record
        if record.exists and record.state is TaskState.SUCCEEDED and record.result is not None:
            found[id_] = record.result
    return found


def _check_size(
    services: Services,
    envelope: Envelope,
    stored: Mapping[str, bytes],
    records: Mapping[str, TaskRecord | StoreError],
) -> None:
    """Refuse results that would take too much memory, before the large ones are read."""
    settings = services.settings
    most = max(MOST_BYTES, argument_caps(settings).max_bytes, result_caps(settings).max_bytes)
    sizes = {id_: _size_of(value) for id_, value in stored.items()}
    total = len(envelope.args)
    for one in envelope.results:
        total += sizes[one.task] if one.task in sizes else len(_default_of(one, records) or b"")
    if total > most:
        raise NotFilled(
            f"its arguments would have {total:,} bytes with the results that they take, and at most {most:,} are "
            "allowed; let the tasks before it return addresses of large data"
        )


def _size_of(value: bytes) -> int:
    if is_apart(value):
        return size_of(value)
    if not is_reference(value):
        return len(value)
    try:
        return unpack_reference(value).size
    except ValueError:
        return 0  # the store says what is wrong with it


async def _values(services: Services, results: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return results, those that are stored elsewhere included."""
    found = dict(results)
    apart = [(id_, value) for id_, value in found.items() if is_apart(value)]
    for (id_, _), value in zip(apart, await read_values(services.store, apart), strict=True):
        if isinstance(value, StoreError):
            raise value
        if value is None:
            del found[id_]
        else:
            found[id_] = value
    stored = [id_ for id_, value in found.items() if is_reference(value)]
    for first in range(0, len(stored), AT_ONCE):
        part = stored[first : first + AT_ONCE]
        loaded = await read_at_once([partial(services.payloads.load, id_, found[id_]) for id_ in part])
        found |= zip(part, loaded, strict=True)
    return found


def _filled(envelope: Envelope, values: Mapping[str, bytes], records: Mapping[str, TaskRecord | StoreError]) -> bytes:
    parts, at = list[bytes](), 0
    for reference in envelope.results:
        behind = reference.offset + len(_NULL)
        if reference.offset < at or envelope.args[reference.offset : behind] != _NULL:
            raise NotFilled("its arguments have no room for the results that they take; its record is damaged")
        parts += [envelope.args[at : reference.offset], _value_of(reference, values, records)]
        at = behind
    return b"".join([*parts, envelope.args[at:]])


def _value_of(
    reference: ResultPlace, values: Mapping[str, bytes], records: Mapping[str, TaskRecord | StoreError]
) -> bytes:
    value = values.get(reference.task)
    if value is None:
        value = _default_of(reference, records)
    if value is not None:
        return value
    state = _state_of(records[reference.task])
    if state is None or state is TaskState.SUCCEEDED:
        raise NotFilled(f"the result of task {reference.task}, which its arguments take, is not kept any longer")
    if not state.final:
        raise NotFilled(
            f"task {reference.task}, whose result its arguments take, has not ended; retry this task after it"
        )
    raise NotFilled(f"task {reference.task}, whose result its arguments take, {ENDS[state]}; retry that one first")


def _default_of(reference: ResultPlace, records: Mapping[str, TaskRecord | StoreError]) -> bytes | None:
    """Return what takes the place of a result if its task is gone, or has ended without a result."""
    state = _state_of(records[reference.task])
    return reference.default if state is None or state in ENDS else None


def _state_of(record: TaskRecord | StoreError) -> TaskState | None:
    return record.state if isinstance(record, TaskRecord) and record.exists else None
