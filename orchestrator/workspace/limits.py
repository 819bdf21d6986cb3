"""Packs the lifetimes and caps of workspaces as the scripts take them (`limits`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from orchestrator.store.calls import pack_rows

if TYPE_CHECKING:
    from orchestrator.core.settings import WorkspaceSettings


@cache
def pack_limits(settings: WorkspaceSettings) -> bytes:
    """Lifetimes and caps, packed once for all calls."""
    return pack_rows(
        [
            (
                round(settings.ttl_s * 1000),
                round(settings.life_s * 1000),
                round(settings.dedup_s * 1000),
                settings.max_dedup,
                settings.max_items,
                settings.max_bytes,
                settings.max_events,
                settings.max_event_bytes,
                settings.max_parts,
                int(settings.json_projection),
            )
        ]
    )
