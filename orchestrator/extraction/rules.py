"""Finds facts by patterns: a few explicit rules in English, without a model."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from anyio import lowlevel

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_text
from orchestrator.extraction.model import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.extraction.model import Turn

MAX_SENTENCE: Final = 1000
"""Characters of a sentence that rules look at; longer ones are left out."""
_SENTENCE: Final = re.compile(r"(?:[^.!?]|[.!?](?!\s|$))+[.!?]*")
_FENCE: Final = ("```", "~~~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern, and the kind of the facts that it finds.

    Attributes:
        name: name of the rule, which the records have.
        kind: kind of the records.
        pattern: regular expression, searched in each sentence. Its group `value` is what is said, its group `key`, if
            it has one, what the fact is about.
        key: what the facts are about, for a pattern without the group `key`. None: the facts supersede no others.
        importance: importance of the records.
        roles: roles of the messages in which it searches.
    """

    name: str
    kind: str
    pattern: str
    key: str | None = None
    importance: float = 0.5
    roles: tuple[str, ...] = ("user",)


_MONTH: Final = (
    r"(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DATE: Final = (
    r"(?:\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? \d{{4}})?"
    r"|(?i:(?:(?:next|this) )?(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tonight|tomorrow"
    r"|next (?:week|month|year)|(?:the )?end of (?:the |this |next )?(?:day|week|month|year)))"
)

RULES: Final = (
    Rule(
        name="name",
        kind="person",
        key="name",
        importance=0.8,
        pattern=r"\b(?i:my name is) (?!(?i:not|a|an|the|on|in|too|so)\b)"
        r"(?P<value>[^\W\d_][\w'\u2019-]*(?: [A-Z][\w'\u2019-]*){0,3})",
    ),
    Rule(
        name="favourite",
        kind="preference",
        importance=0.6,
        pattern=r"\b(?i:my (?:favou?rite|preferred)) (?P<key>[\w-]+(?: [\w-]+){0,2}?) (?i:is) "
        r"(?P<value>(?!(?i:not)\b)[^,;]+)",
    ),
    Rule(
        name="preference",
        kind="preference",
        importance=0.6,
        pattern=r"\b(?i:i(?:'d|\u2019d| would)?(?: really| strongly| much)? prefer) (?P<value>[^,;]+)",
    ),
    Rule(
        name="instruction",
        kind="instruction",
        importance=0.8,
        pattern=r"\b(?i:please) (?P<value>(?i:always|never|do not|don't|don\u2019t) .+)",
    ),
    Rule(
        name="note",
        kind="note",
        importance=0.8,
        pattern=r"^\W*(?i:(?:please |and |so |but |also )*(?:remember|note|keep in mind),? that) (?P<value>.+)",
    ),
    Rule(
        name="deadline",
        kind="deadline",
        importance=0.7,
        pattern=r"\b(?i:by|until|before|no later than|not later than|due(?: on| by)?|deadline(?: is)?(?: on)?)"
        rf" (?P<value>{_DATE})\b",
    ),
    Rule(
        name="decision",
        kind="decision",
        importance=0.7,
        pattern=r"\b(?i:(?:we|i)(?:'ve|\u2019ve| have)?(?: now)? decided (?:to|on|for|against|that)"
        r"|(?:let's|let\u2019s|let us|we will|we'll|we\u2019ll) go with) (?P<value>.+)",
    ),
)
"""The rules of `RuleExtractor`, if it is given no others."""


class RuleExtractor:
    """Finds facts by regular expressions: what people say literally. It is no model, and understands nothing.

    It looks at each sentence alone, in the messages of the roles that a rule names. A record has the sentence as `text`
    and the group `value` of the pattern as `value`, both word for word. A sentence gives one fact of each kind: that
    of the first rule that matches.

    It does not recognise what is said in other words, in other languages, over two sentences or lines, or by a
    reference (`that one`, `as before`). It takes irony, hypotheses and the words of a third person for true, and gives
    no confidence. It computes no dates: `by Friday` stays these words. It leaves out questions, quoted lines (`>`),
    blocks of code, and sentences of more than 1000 characters.

    Args:
        rules: the rules, in the order of their precedence; by default `RuleExtractor.defaults`.
        name: name of the extractor.

    Raises:
        InvalidInput: a pattern is no regular expression, or has no group `value`.

    Attributes:
        name: name of the extractor.
        version: hash of the rules, so that other rules are another version.
        rules: the rules.
        defaults: the shipped rules. They are values: extend, replace or leave out what does not fit.
    """

    __slots__ = ("_patterns", "name", "rules", "version")
    defaults: ClassVar[tuple[Rule, ...]] = RULES

    def __init__(self, rules: Sequence[Rule] = RULES, *, name: str = "rules") -> None:
        self.name: str = check_text("name", name)
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._patterns = [(rule, _compile(rule)) for rule in self.rules]
        self.version: str = hashlib.sha256(repr(self.rules).encode()).hexdigest()[:8]

    async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
        """Return the facts in some turns, oldest first."""
        found: list[Fact] = []
        for turn in turns:
            for message in turn.messages:
                patterns = [each for each in self._patterns if message.role in each[0].roles]
                for sentence in _sentences(message.text) if patterns else ():
                    found += _facts(message.id, sentence, patterns)
                # A long chat must not hold up the other tasks of the worker.
                await lowlevel.checkpoint()
        return found


def _compile(rule: Rule) -> re.Pattern[str]:
    try:
        pattern = re.compile(rule.pattern)
    except re.error as wrong:
        raise InvalidInput(f"the pattern of rule {rule.name!r} is no regular expression: {wrong}") from None
    if "value" not in pattern.groupindex:
        raise InvalidInput(f"the pattern of rule {rule.name!r} needs a group named value, as (?P<value>.+)")
    return pattern


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences that rules look at."""
    fenced = False
    for line in text.splitlines():
        plain = line.lstrip()
        if plain.startswith(_FENCE):
            fenced = not fenced
        elif not fenced and not plain.startswith(">"):
            for found in _SENTENCE.finditer(line):
                sentence = found[0].strip()
                if sentence and len(sentence) <= MAX_SENTENCE and not sentence.rstrip(".!").endswith("?"):
                    yield sentence


def _facts(message: str, sentence: str, patterns: Sequence[tuple[Rule, re.Pattern[str]]]) -> Iterator[Fact]:
    kinds = set[str]()
    for rule, pattern in patterns:
        found = None if rule.kind in kinds else pattern.search(sentence)
        value = (found["value"] or "").strip(" \t.,;:!\"'") if found is not None else ""
        if found is None or not value:
            continue
        kinds.add(rule.kind)
        key = found["key"] if "key" in pattern.groupindex else rule.key
        yield Fact(
            kind=rule.kind,
            content={"text": sentence, "value": value},
            messages=(message,),
            key=" ".join(key.lower().split()) if key else None,
            importance=rule.importance,
            rule=rule.name,
        )
