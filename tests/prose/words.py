"""The words that the prose rule rules out, each with what to write in its place.

Patterns are regular expressions over whole words, without regard to case; code in backticks is not looked at.
"""

from __future__ import annotations

from typing import Final

_ACTOR: Final = "name the actor: the worker, the supervisor, the client, the operator, Redis"

WORDS: Final[dict[str, str]] = {
    "nobody|somebody|someone|anybody|everybody|whoever|no one": _ACTOR,
    "whatever": "name the thing, or write any",
    "deeds?": "action, or side effect",
    "soiled": "tainted",
    "hurt": "unavailable, or out of memory",
    "goodbye": "deregistration",
    "heard|hears?|hearing": "received, receives",
    "beaten|has not beaten": "no heartbeat",
    "bury|buried|tally|poke|pokes": "name what the code does: index, count, notify",
    "revive[sd]?|revival|reviving": "retry, requeued",
    "mend(?:s|ed|ing)?|tidied|sift(?:s|ed|ing)?": "repair, clean, check",
    "forgive[sn]?|forgiving": "not counted",
    "forgo(?:es|ne)?": "skip",
    "lies broken|broken beside": "is corrupt",
    "in our hands|in its hands|in their hands|in the hands of": "running, or held by",
    "at the door": "before anything is sent",
    "houses?|hearts?|debts?": "no metaphor",
    "patience": "retry_for",
    "intakes?": "fetcher",
    "pulses?": "heartbeat",
    "holdings": "entries in flight",
    "lets? go of": "release, releases",
    "laid aside|lay aside|lays aside": "suspended",
    "thaw(?:s|ed|ing)?": "resumes, resumed",
    "in force": "active",
    "for ever": "without limit, or permanently",
    "be called off|called off|calls? off": "cancelled",
    "stands? for itself|goes? its way|comes? to its end": "say what happens",
    "a death behind (?:it|them)|with a death": "a task that crashed a worker",
}

OPENINGS: Final = (
    "What", "Who", "Whose", "Whether", "Where", "Why", "How", "That", "Of", "So", "Those", "As", "Nobody", "Somebody",
    "One that", "Once", "Since", "Than", "Others", "Such", "Then",
)  # fmt: skip
"""First words that turn the opening of a docstring into a subject clause. Write `Returns True if …` for `Whether …`."""
