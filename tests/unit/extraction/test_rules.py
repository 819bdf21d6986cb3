"""`RuleExtractor`: what its rules find, what they leave out, and that it never adds a word of its own."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Fact, InvalidInput, Rule, RuleExtractor, Turn, TurnMessage
from orchestrator.extraction.rules import _facts, _sentences
from orchestrator.extraction.turns import text_of
from tests.helpers.cases import each_case

AT = datetime(2026, 1, 1, tzinfo=UTC)


def find(*texts: str, role: str = "user", rules: tuple[Rule, ...] = RuleExtractor.defaults) -> list[Fact]:
    """The facts in one turn."""
    messages = [TurnMessage(f"m{n}", n, role, text, None, AT, {}) for n, text in enumerate(texts, 1)]
    extractor = RuleExtractor(rules)
    return list(anyio.run(extractor.extract, [Turn(None, tuple(messages))]))


@each_case(
    ("text", "found"),
    [
        ("My name is Ann.", [("name", "name", "Ann")]),
        ("hello, my name is ann and I live in Rome", [("name", "name", "ann")]),
        ("Hi! My name is Ana María O'Neill, from Rome", [("name", "name", "Ana María O'Neill")]),
        ("My favourite drink is oolong tea, really.", [("favourite", "drink", "oolong tea")]),
        ("my preferred meeting time is 9 am", [("favourite", "meeting time", "9 am")]),
        ("I prefer tea.", [("preference", None, "tea")]),
        ("I'd prefer e-mail; thanks", [("preference", None, "e-mail")]),
        ("Please always knock. Please never call!", [("instruction", None, "always knock"),
                                                    ("instruction", None, "never call")]),
        ("please don't call before 9.30 am", [("instruction", None, "don't call before 9.30 am")]),
        ("Remember that the well is dry.", [("note", None, "the well is dry")]),
        ("And please remember that 2 + 2 = 4", [("note", None, "2 + 2 = 4")]),
        ("I need it by next Friday.", [("deadline", None, "next Friday")]),
        ("It is due on 2026-03-01, at noon", [("deadline", None, "2026-03-01")]),
        ("No later than March 3rd, 2027!", [("deadline", None, "March 3rd, 2027")]),
        ("the deadline is the end of this month", [("deadline", None, "the end of this month")]),
        ("We decided to wait. Let's go with plan B", [("decision", None, "wait"), ("decision", None, "plan B")]),
        ("We have decided against it", [("decision", None, "it")]),
        ("Please always send it by Friday", [("instruction", None, "always send it by Friday"),
                                            ("deadline", None, "Friday")]),
    ],
)  # fmt: skip
def test_what_is_found(text: str, found: list[tuple[str, str | None, str]]) -> None:
    """The name of the rule, the key and the value."""
    assert [(fact.rule, fact.key, fact.content["value"]) for fact in find(text)] == found


@each_case(
    "text",
    [
        "Do I prefer tea? Should I remember that?",
        "Is my name is Ann!?",
        "> My name is Bob",
        "```\nMy name is Bob\n```",
        "My name is not important",
        "I remember that we met",
        "I don't prefer anything",
        "He prefers tea",
        "Call me tomorrow",
        "We may meet in May",
        "Ich heiße Ann",
        "I prefer " + "x" * 1000,
        "",
    ],
)
def test_what_is_left_out(text: str) -> None:
    """Questions, quotes, code, long sentences, and all that is said in other words."""
    assert find(text) == []


def test_roles() -> None:
    """A rule looks at the messages of its roles."""
    assert find("My name is Helper.", role="assistant") == []
    rule = Rule(name="r", kind="k", pattern="(?P<value>Helper)", roles=("assistant",))
    assert [fact.content["value"] for fact in find("My name is Helper.", role="assistant", rules=(rule,))] == ["Helper"]


def test_rules_are_values() -> None:
    """Of the rules of a kind the first one that matches counts, and other rules are another version."""
    drink = Rule(name="drink", kind="preference", pattern=r"\bI prefer (?P<value>tea|coffee)\b", key="drink")
    (fact,) = find("I prefer tea.", rules=(drink, *RuleExtractor.defaults))
    assert (fact.rule, fact.key, fact.messages, fact.confidence) == ("drink", "drink", ("m1",), None)
    (other,) = find("I prefer wine.", rules=(drink, *RuleExtractor.defaults))
    assert (other.rule, other.key) == ("preference", None)
    assert RuleExtractor().version == RuleExtractor(list(RuleExtractor.defaults)).version
    assert RuleExtractor().version != RuleExtractor((drink, *RuleExtractor.defaults)).version
    with pytest.raises(InvalidInput, match="no regular expression"):
        RuleExtractor([Rule(name="r", kind="k", pattern="(")])
    with pytest.raises(InvalidInput, match="a group named value"):
        RuleExtractor([Rule(name="r", kind="k", pattern="x")])


WORDS = st.sampled_from(
    [
        *("My name is ", "my favourite drink is ", "I prefer ", "please never ", "Remember that ", "by ", "Friday"),
        *("May 3", "we decided to ", "let's go with ", "Ann", " Lee", "tea", "2026-01-01", " and ", "> ", "```"),
        *("\u2019", "'", "é", ". ", "! ", "? ", "\n", ", ", "; ", "\u2028", "\t", "…"),
    ]
)


@given(st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=30).map("".join))
def test_no_word_is_added(text: str) -> None:
    """Each text and value stands in the message, word for word; each fact names its message."""
    facts = [fact for sentence in _sentences(text) for fact in _facts("m1", sentence, RuleExtractor()._patterns)]
    for fact in facts:
        assert fact.content["text"] in text
        assert fact.content["value"]
        assert fact.content["value"] in fact.content["text"]
        assert fact.messages == ("m1",)


@each_case(
    ("data", "text"),
    [
        ({"content": "x"}, "x"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "input_text", "text": "b"}]}, "a\nb"),
        ({"content": None}, ""),
        ({"type": "function_call"}, ""),
        ({"content": [1, {"text": 2}]}, ""),
        ([], ""),
    ],
)
def test_texts_of_messages(data: object, text: str) -> None:
    """The usual forms of messages have a text; others have none."""
    assert text_of(data) == text
