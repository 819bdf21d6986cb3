"""Codes of damage, and one finding of a scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DamageKind:
    """One kind of damage.

    Attributes:
        code: stable name for programs.
        repair: effect of a repair; empty if an operator must look.
        harmless: occurs in normal operation; counted separately.
        index: other keys have all of it, so that a restore leaves it out and makes it again.
    """

    code: str
    found: str
    repair: str = ""
    harmless: bool = False
    index: bool = False


_TABLE: Final = (
    DamageKind("lost-ready", "A ready task is in no queue.", "It is put back into its queue."),
    DamageKind(
        "lost-scheduled", "A scheduled task is not in `scheduled`.", "It is put back with the time of its record."
    ),
    DamageKind(
        "lost-asking", "A task that waits for a person is not in `asking`.", "It is put back with its deadline."
    ),
    DamageKind(
        "lost-entry",
        "An assigned task has no entry in the inbox, or one that no worker can read.",
        "It is ready again at the head of its queue, in a new generation; no death is counted.",
    ),
    DamageKind("lost-deadline", "A waiting task with `start_by` is not in `expiring`.", "It is added."),
    DamageKind(
        "lost-lane",
        "A task is not in its lane.",
        "It is put back: first if it has the turn, else by its submit time.",
    ),
    DamageKind("lost-turn", "A lane holds tasks, and none has the turn.", "Its first task gets it."),
    DamageKind(
        "out-of-turn",
        "A task is in its queue although another one of its lane comes before it.",
        "It waits in its lane.",
    ),
    DamageKind(
        "lost-stand",
        "Tasks of a key wait, and none of them stands in its queue.",
        "The first one stands in it.",
    ),
    DamageKind(
        "lost-place",
        "A running task does not count for its key.",
        "It counts; no more than the key may have at a time start.",
    ),
    DamageKind("lost-following", "A task that waits for its predecessors is not listed in `after`.", "It is listed."),
    DamageKind(
        "lost-after",
        "The list of the predecessors of a task is lost.",
        "It is made again from the record; what has ended leaves it.",
    ),
    DamageKind(
        "lost-end",
        "A predecessor of a task has ended, or is gone, and the task waits for it.",
        "The task goes on, or is cancelled if the failure does so.",
    ),
    DamageKind("lost-follower", "A task does not name a task that runs after it.", "It names it."),
    DamageKind("lost-joining", "A task that joins others is not listed in `joining`.", "It is listed."),
    DamageKind(
        "lost-join",
        "A task waits for others that have all ended, or whose list is lost.",
        "It is ready at its old place.",
    ),
    DamageKind("lost-parent", "A task does not name a task that joins it.", "It names it."),
    DamageKind("lost-letter", "A dead letter is not listed among the dead.", "It is listed."),
    DamageKind("lost-tag", "A task is not listed by one of its tags.", "It is listed.", harmless=True),
    DamageKind("misplaced", "An index lists a task that is elsewhere.", "It is removed from that index."),
    DamageKind("gone", "An index lists a task whose record is gone.", "It is removed from that index.", harmless=True),
    DamageKind(
        "damaged",
        "A record, entry or idempotency key is corrupt.",
        "A task becomes a dead letter with the reason; an entry or key is removed.",
    ),
    DamageKind(
        "unreadable", "A record has another type, or Redis refuses to read it.", "It is removed from the index."
    ),
    DamageKind("stray-entry", "An inbox entry belongs to no attempt.", "It is removed, which makes room."),
    DamageKind(
        "no-group",
        "An inbox has no group, so no worker can read it.",
        "The group is created from the beginning of the inbox.",
    ),
    DamageKind(
        "lent-slots",
        "The slots that an agent lends differ from what its workers state.",
        "They are summed up again.",
    ),
    DamageKind("unlisted-agent", "An agent has workers or an inbox and is not listed.", "It is listed."),
    DamageKind(
        "unknown-worker",
        "A worker is counted for an agent and is not registered.",
        "It is no longer counted; if it lives, it registers again.",
    ),
    DamageKind(
        "miscounted-agent",
        "What the workers of an agent offer is counted wrongly.",
        "Its workers are counted again.",
    ),
    DamageKind("skill-index", "The index of a skill lists the wrong agents.", "It is rebuilt."),
    DamageKind(
        "unlisted-queue",
        "A queue that holds tasks is not listed in `queues`, or one that a stop holds back is not in `held`.",
        "It is listed.",
    ),
    DamageKind(
        "lost-schedule", "A schedule is not listed at the time that its record says.", "It is listed, and fires then."
    ),
    DamageKind("gone-schedule", "A schedule is listed that has no record.", "It is removed from the list."),
    DamageKind("damaged-schedule", "The record of a schedule has no definition or no time.", "It is deleted."),
    DamageKind(
        "listed-empty",
        "`queues` lists a queue that is empty, or `held` a stop that holds nothing.",
        "It is removed from the list.",
        harmless=True,
    ),
    DamageKind("orphan-key", "An idempotency key names a task that is gone.", "It is removed.", harmless=True),
    DamageKind("orphan-output", "An output stream belongs to no task.", "It expires in 5 minutes.", harmless=True),
    DamageKind("unlisted-lock", "A lock is held and not listed in its scope.", "It is listed."),
    DamageKind(
        "unlisted-part", "A workspace does not list one of its logs, sets, scratches or inboxes.", "It is listed."
    ),
    DamageKind(
        "lost-counts",
        "A workspace, a chat or a memory has data and lacks its counts.",
        "They are counted again; revisions and versions go on above the old ones.",
        index=True,
    ),
    DamageKind(
        "chat-gap",
        "A chat lacks messages that it has counted. `rehydrate` reads them from secondary storage; a backup has those "
        "of its time. The next change of the chat counts again.",
    ),
    DamageKind(
        "lost-chat",
        "A chat that its session lists is gone before its end. `rehydrate` reads it from secondary storage.",
        "It is taken off the list.",
    ),
    DamageKind("unlisted-chat", "A session does not list one of its chats.", "It is listed.", index=True),
    DamageKind("unlisted-message", "A message of a chat is not listed by its id.", "It is listed.", index=True),
    DamageKind(
        "lost-items",
        "A workspace lacks items that it has counted: a key with data was lost.",
        "The counts are corrected. The data comes back from a backup, or from the program that wrote it.",
    ),
    DamageKind(
        "unlisted-record", "An index of a memory lacks one of its records.", "It is listed in all of them.", index=True
    ),
    DamageKind(
        "unlisted-state", "An index of a simulation lacks a record.", "It is listed in all of them.", index=True
    ),
    DamageKind("orphan-entry", "An index of a memory has an entry without a record.", "It is removed."),
    DamageKind(
        "lost-record",
        "A record of a memory has lost its content.",
        "It is removed with its entries. A backup or long-term storage may have it.",
    ),
    DamageKind(
        "lost-vector",
        "A record of a memory has lost its vector.",
        "It stays without one, until it is stored with a vector again.",
    ),
    DamageKind("orphan-vector", "A vector of a memory belongs to no record.", "It is removed."),
    DamageKind(
        "lost-header",
        "A record of a memory has lost its header, so that no recall finds it.",
        "It is removed. A backup or long-term storage may have it.",
    ),
    DamageKind(
        "lost-events",
        "The events of a workspace are gone.",
        "The next change begins a new stream. Programs that follow it must take a snapshot.",
    ),
    DamageKind("no-lifetime", "A temporary key has no lifetime.", "It gets the lifetime of its kind."),
    DamageKind(
        "wrong-type",
        "A key has another type: commands on it fail.",
        "A key of a pool is renamed to `mistyped:KEY:MICROSECONDS`, which ends after 30 days; save what its owner "
        "needs. Workers and the next scan make again what other keys have.",
    ),
    DamageKind(
        "guarded-type",
        "A key has another type without which something would happen that it forbids, such as a start behind a stop. "
        "Look at it, then delete it and repeat the commands.",
    ),
    DamageKind(
        "renamed", "A repair has renamed a key of another type. Save what its owner needs, or delete it.", harmless=True
    ),
    DamageKind("foreign", "A key of the pool or the prefix does not belong to this program."),
)

DAMAGE_KINDS: Final = {damage.code: damage for damage in _TABLE}


@dataclass(frozen=True, slots=True)
class RepairFinding:
    """One damage: its code, the key or task, the index that lists it, and if it was repaired."""

    code: str
    subject: str
    place: str
    repaired: bool

    @property
    def damage(self) -> DamageKind:
        """Entry of its code in the table."""
        return DAMAGE_KINDS[self.code]
