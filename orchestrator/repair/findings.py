"""What a walk can find: the table of codes, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DamageKind:
    """One kind of damage.

    Attributes:
        code: its name for programs; never changes.
        found: what is wrong.
        repair: what a repair does; empty: nothing, a person must look.
        harmless: True if it is left behind in the ordinary course of things; counted apart.
    """

    code: str
    found: str
    repair: str = ""
    harmless: bool = False


_TABLE: Final = (
    DamageKind("lost-ready", "A ready task is in no queue.", "It goes to its place in its queue."),
    DamageKind(
        "lost-scheduled", "A scheduled task is not in `scheduled`.", "It goes back, with the time in its record."
    ),
    DamageKind("lost-asking", "A task that waits for a person is not in `asking`.", "It goes back, with its deadline."),
    DamageKind(
        "lost-entry",
        "An assigned task has no entry in the inbox, or one that nobody will read.",
        "It is ready again at the head of its queue, in a new generation; no death is counted.",
    ),
    DamageKind("lost-deadline", "A waiting task with `start_by` is not in `expiring`.", "It is put in."),
    DamageKind(
        "lost-lane",
        "A task is not in its lane.",
        "It gets its place: the first one if it has had the turn, else by the time of its submit.",
    ),
    DamageKind("lost-turn", "A lane holds tasks, and none has the turn.", "Its first task gets it."),
    DamageKind(
        "out-of-turn",
        "A task is in its queue although another one of its lane comes before it.",
        "It waits in its lane.",
    ),
    DamageKind("lost-letter", "A dead letter is not listed among the dead.", "It is listed."),
    DamageKind("misplaced", "An index lists a task that is elsewhere.", "It leaves that index."),
    DamageKind("gone", "An index lists a task whose record is gone.", "It leaves that index.", harmless=True),
    DamageKind(
        "damaged",
        "A record, entry or idempotency key that nobody could work with.",
        "A task becomes a dead letter with the reason; an entry or key is removed.",
    ),
    DamageKind(
        "unreadable", "Another type lies where a record should, or Redis refuses to look.", "It leaves the index."
    ),
    DamageKind("stray-entry", "An inbox entry belongs to no attempt.", "It is removed, which makes room."),
    DamageKind("no-group", "An inbox has no group, so nobody can read it.", "The group is made, from the beginning."),
    DamageKind("unlisted-agent", "An agent has workers or an inbox, and no place among the agents.", "It gets one."),
    DamageKind(
        "unknown-worker",
        "A worker counts for an agent and is not known to live.",
        "It is not counted any more; if it lives, it registers again.",
    ),
    DamageKind("skill-index", "The agents of a skill are not those that have it.", "They are made so."),
    DamageKind(
        "unlisted-queue",
        "A queue that holds tasks is not listed in `queues`, or what a stop holds back not in `held`.",
        "It is listed.",
    ),
    DamageKind(
        "lost-schedule", "A schedule is not listed at the time that its record says.", "It is listed, and fires then."
    ),
    DamageKind("gone-schedule", "A schedule is listed that has no record.", "It leaves the list."),
    DamageKind("damaged-schedule", "The record of a schedule has no definition or no time.", "It is deleted."),
    DamageKind(
        "listed-empty",
        "`queues` lists a queue that is empty, or `held` a stop that holds nothing.",
        "It leaves the list.",
        harmless=True,
    ),
    DamageKind("orphan-key", "An idempotency key names a task that is gone.", "It is removed.", harmless=True),
    DamageKind("orphan-output", "An output stream belongs to no task.", "It goes in 5 minutes.", harmless=True),
    DamageKind("no-lifetime", "A key would stay for ever and should not.", "It gets the lifetime of its kind."),
    DamageKind("wrong-type", "A key of ours holds another type: whoever uses it fails."),
    DamageKind("foreign", "A key under the root of the pool is none of ours."),
)

DAMAGE_KINDS: Final = {damage.code: damage for damage in _TABLE}


@dataclass(frozen=True, slots=True)
class RepairFinding:
    """One thing that is wrong: its code, the key or task, the index that lists it, and whether it was repaired."""

    code: str
    subject: str
    place: str
    repaired: bool

    @property
    def damage(self) -> DamageKind:
        """What is known of its kind."""
        return DAMAGE_KINDS[self.code]
