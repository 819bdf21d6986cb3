"""One session: what it does now, lanes of its agents over time, its tasks, locks and stops."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.lanes import bars_of, draw
from orchestrator.dashboard.page import page
from orchestrator.dashboard.texts import Texts, as_command
from orchestrator.dashboard.workspace_rows import is_sent_by_forms, session_of
from orchestrator.views.session_summary import read_session_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SPANS: Final = {
    "1m": (60, "last minute"), "10m": (600, "last 10 min"), "1h": (3600, "last hour"), "1d": (86_400, "last day"),
}  # fmt: skip


@page("/sessions/one", "session.html", narrowed=True)
async def session(asked: PageRequest) -> Mapping[str, Any]:
    """Read a session; of its tasks the newest 60."""
    id_ = session_of(asked)
    found = await read_session_summary(asked.services, id_)
    bars = bars_of(found.tasks, found.now)
    span = asked.text("span")
    ended = max((bar.end for bar in bars), default=found.now)
    since = ended - timedelta(seconds=SPANS[span][0]) if span in SPANS else None
    return {
        "id": id_,
        "found": found,
        "states": found.states,
        "lanes": draw(bars, since=since),
        "span": span,
        "spans": {name: said for name, (_, said) in SPANS.items()},
        "texts_of_part": Texts.of_part,
        "own_stop": next((stop for stop in found.stops if stop.kind == "session"), None),
        "sends": is_sent_by_forms(id_),
        "commands": [as_command("orc", "sessions", "show", id_)],
        "stop_command": as_command("orc", "stop", session=id_),
    }
