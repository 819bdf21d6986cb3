"""The tasks below a task, each behind its parent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.page import page
from orchestrator.views.families import count_children, read_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN: Final = 500


@page("/tasks/{id}/tree", "task_tree.html")
async def task_tree(asked: PageRequest) -> Mapping[str, Any]:
    """Read up to `SHOWN` tasks; of those that have more children, the number."""
    id_ = asked.path["id"]
    tree = await read_tree(asked.services, id_, limit=SHOWN)
    left: dict[str, int] = {}
    if tree.more:
        shown: dict[str, int] = {}
        for row in tree.rows:
            if row.parent is not None:
                shown[row.parent] = shown.get(row.parent, 0) + 1
        counts = await count_children(asked.services, [row.id for row in tree.rows])
        left = {one: count - shown.get(one, 0) for one, count in counts.items() if count > shown.get(one, 0)}
    top = min(row.depth for row in tree.rows)
    return {
        "id": id_,
        "rows": [(row, row.depth - top, left.get(row.id, 0)) for row in tree.rows],
        "more": tree.more,
        "gone": len(tree.ids) - len(tree.rows),
        "commands": [f"orc tasks show {id_} --tree", f"orc tasks list --parent {id_}"],
    }
