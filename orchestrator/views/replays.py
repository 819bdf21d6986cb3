"""Reads past states of the workspace of a session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.reading import read_whole
from orchestrator.store.scoped import bind_scope
from orchestrator.workspace.kept_states import read_event_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services
    from orchestrator.workspace.kept_states import EventLog, PastState

_EVENT: Final = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)
_REVISION: Final = re.compile(r"\d{1,15}", re.ASCII)


def parse_point(text: str) -> int | str:
    """Return a point in the history of a workspace: a revision, or the id of an event.

    Raises:
        InvalidInput: it is neither.
    """
    if _REVISION.fullmatch(text):
        return read_whole(text)
    if _EVENT.fullmatch(text):
        return text
    raise InvalidInput(f"{ascii(text)[:80]} is no point of a replay; give a revision or the id of an event")


async def read_past_states(
    services: Services, session: str, points: Sequence[int | str | None]
) -> tuple[EventLog, list[PastState]]:
    """Return the events of a session's workspace and its states at some points; None is the newest event.

    Raises:
        InvalidInput: that is no session.
        NotFound: no event is stored.
    """
    scope = bind_scope(services.store, services.settings, "session", session)
    log = await read_event_log(scope)
    if log is None:
        raise NotFound(f"session {session!r} has no events of a workspace; they expire with it")
    wanted = [log.last.id if point is None else point for point in points]
    return log, await services.past_states.reach(scope, log, wanted)
