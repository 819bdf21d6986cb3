"""The pools of one process share settings, watched loops and a log level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import level_in_use, override_level, set_level, share_level
from orchestrator.core.settings import Settings
from orchestrator.core.turns import LoopTurns

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def usual_level() -> Iterator[None]:
    """Set the level of the settings, and end what operators have set."""
    set_level("info")
    yield
    for pool in ("mail", "billing"):
        override_level(None, of=pool)


def test_a_reload_changes_the_settings_of_each_pool() -> None:
    """The settings of a pool differ by its name alone, also after a change, whose listeners are called."""
    live = LiveSettings(Settings(pool="mail"))
    assert live.of_pool("mail") is live
    billing, changes = live.of_pool("billing"), list[str]()
    assert (billing.current.pool, billing.generation) == ("billing", 1)
    billing.on_change(lambda: changes.append(billing.current.pool))
    queue = live.current.queue.model_copy(update={"max_tasks": 7})
    live.replace(live.current.model_copy(update={"queue": queue}), generation=2)
    assert (billing.current.pool, billing.current.queue.max_tasks, billing.generation) == ("billing", 7, 2)
    assert live.current.pool == "mail"
    assert changes == ["billing"]


def test_a_silent_loop_names_its_pool() -> None:
    """The process watches the loops of all pools, and each pool sees its own; a name that begins alike is another's."""
    process = LoopTurns()
    mail, mails = process.of_pool("mail"), process.of_pool("mail-2")
    hung = mail.loop("promoter", silent_after_s=-1.0)
    with mails.loop("promoter", silent_after_s=-1.0):
        assert [turn.name for turn in process.silent()] == ["mail/promoter", "mail-2/promoter"]
        assert mail.silent() == (hung,)
    assert mails.silent() == ()
    hung.close()
    assert process.silent() == ()


@pytest.mark.usefixtures("usual_level")
def test_the_most_detailed_level_of_all_pools() -> None:
    """The level of one pool hides nothing of another one. Twin: of the only pool it counts alone."""
    override_level("error", of="mail")
    assert level_in_use() == "error"
    with share_level(pools=2):
        override_level("error", of="mail")
        assert level_in_use() == "info"
        override_level("warning", of="billing")
        assert level_in_use() == "warning"
        override_level("debug", of="billing")
        assert level_in_use() == "debug"
        override_level(None, of="billing")
        assert level_in_use() == "info"
    assert level_in_use() == "error"
