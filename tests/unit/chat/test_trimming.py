"""Which messages a model gets: an output of a tool never comes without its call, a turn never in part."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chat.model import StoredMessage, format_links, parse_entries
from orchestrator.chat.tool_calls import answers_of, calls_of
from orchestrator.chat.trimming import orphans, select
from tests.helpers.cases import each_case


def message(
    number: int, data: Any, *, tokens: int | None = 1, turn: str | None = None, **links: tuple[str, ...] | None
) -> StoredMessage:
    """A stored message."""
    calls, answers = links.get("calls"), links.get("answers")
    return StoredMessage(number, number, 1, tokens, 0, f"m{number}", turn, None, calls, answers, data)


FORMATS = {
    "chat": (
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function"}, {"id": "y"}]},
        {"role": "tool", "tool_call_id": "x", "content": "4"},
        ("x", "y"),
    ),
    "responses": (
        {"type": "function_call", "call_id": "x", "id": "fc_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "4"},
        ("x",),
    ),
    "responses, other tools": (
        {"type": "computer_call", "call_id": "x", "action": {}},
        {"type": "computer_call_output", "call_id": "x", "output": {}},
        ("x",),
    ),
    "anthropic": (
        {"role": "assistant", "content": [{"type": "text"}, {"type": "tool_use", "id": "x"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "4"}]},
        ("x",),
    ),
}


@each_case("name", FORMATS)
def test_formats(name: str) -> None:
    """Calls and outputs are recognised in the messages of OpenAI and Anthropic."""
    call, output, ids = FORMATS[name]
    assert (calls_of(message(1, call)), answers_of(message(1, call))) == (ids, ())
    assert (calls_of(message(1, output)), answers_of(message(1, output))) == ((), ("x",))


@each_case(
    "data", [{}, [], "x", None, {"content": "x"}, {"tool_calls": [1, {}]}, {"content": [{"type": "tool_use"}, 1]}]
)
def test_other_messages(data: Any) -> None:
    """Anything else has none, unless the caller says so."""
    assert calls_of(message(1, data)) == answers_of(message(1, data)) == ()
    said = message(1, data, calls=("a",), answers=("b", "c"))
    assert (calls_of(said), answers_of(said)) == (("a",), ("b", "c"))


def test_the_caller_decides() -> None:
    """What the caller says stands over the message, also when it says: none."""
    call, output, _ = FORMATS["chat"]
    assert calls_of(message(1, call, calls=())) == ()
    assert answers_of(message(1, output, answers=())) == ()


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
links = st.none() | st.lists(names, max_size=3).map(tuple)


@given(links, links)
def test_links(calls: tuple[str, ...] | None, answers: tuple[str, ...] | None) -> None:
    """Ids of calls are stored in two columns, and read again."""
    column = format_links(calls, answers)
    (stored,) = parse_entries([f'1,2,3,null,5,"id",null,null,{column},{{}}'.encode()])
    assert (stored.calls, stored.answers) == (calls, answers)


@st.composite
def histories(draw: st.DrawFn) -> list[StoredMessage]:
    """Messages with turns, some of them interleaved, calls and outputs, some of which were lost."""
    made: list[StoredMessage] = []
    marked = draw(st.booleans())
    turn = 0
    for number in range(1, draw(st.integers(1, 25)) + 1):
        kind = draw(st.sampled_from(["user", "text", "call", "output", "output"]))
        turn += kind == "user"
        name = str(max(0, turn - (draw(st.integers(0, 4)) == 0))) if marked and draw(st.integers(0, 9)) else None
        data: dict[str, Any] = {"role": "user" if kind == "user" else "assistant"}
        if kind == "call":
            data["tool_calls"] = [{"id": f"c{number}"}, {"id": f"d{number}"}]
        if kind == "output":
            calls = [id_ for earlier in made for id_ in calls_of(earlier)]
            data = {"role": "tool", "tool_call_id": draw(st.sampled_from(calls or ["lost"]))}
        made.append(message(number, data, tokens=draw(st.sampled_from([1, 2, 5, 40])), turn=name))
    return made


@given(histories(), st.integers(0, 10), st.none() | st.integers(1, 4), st.none() | st.integers(1, 60))
def test_selections(history: list[StoredMessage], lost: int, turns: int | None, max_tokens: int | None) -> None:
    """The newest messages within the limits: none of a turn in part, no output without its call."""
    window = history[lost:]
    start, _ = select(window, turns=turns, max_tokens=max_tokens, pair_safe=True, whole=lost == 0)
    chosen = window[start:]
    if max_tokens is not None:
        assert sum(each.tokens or 0 for each in chosen) <= max_tokens
    lonely = orphans(chosen)
    if lost:
        assert not lonely
    chosen = [each for place, each in enumerate(chosen) if place not in lonely]
    there = set[str]()
    for each in chosen:
        assert set(answers_of(each)) <= there
        there |= set(calls_of(each))
    if max_tokens is not None:
        assert sum(each.tokens or 0 for each in chosen) <= max_tokens
    if turns is not None:
        before = {each.turn for each in window[:start] if each.turn is not None}
        assert not before & {each.turn for each in chosen}
        assert len([each for each in chosen if each.turn is None and each.data["role"] == "user"]) <= turns


@given(histories(), st.none() | st.integers(1, 60))
def test_nothing_is_left_out_without_need(history: list[StoredMessage], max_tokens: int | None) -> None:
    """Every longer selection has an output without its call, or too many tokens."""
    start, _ = select(history, turns=None, max_tokens=max_tokens, pair_safe=True, whole=True)
    for longer in range(start):
        chosen, there, paired = history[longer:], set[str](), True
        for each in chosen:
            earlier = {id_ for before in history[:longer] for id_ in calls_of(before)}
            paired = paired and not (set(answers_of(each)) - there) & earlier
            there |= set(calls_of(each))
        tokens = sum(each.tokens or 0 for each in chosen)
        assert not paired or (max_tokens is not None and tokens > max_tokens)


def test_an_output_whose_call_is_nowhere() -> None:
    """In a whole chat it alone is left out; in a window its call may lie before, so the window begins behind it."""
    output = FORMATS["chat"][1]
    history = [message(1, {"role": "user"}), message(2, output), message(3, {"role": "user"})]
    assert select(history, turns=None, max_tokens=None, pair_safe=True, whole=True) == (0, False)
    assert orphans(history) == {1}
    assert select(history, turns=None, max_tokens=None, pair_safe=True, whole=False) == (2, False)


def test_turns() -> None:
    """The last turns are chosen by their names, or by the messages of the user where they have none."""
    roles = ["user", "assistant", "user", "assistant", "assistant", "user"]
    plain = [message(number, {"role": role}) for number, role in enumerate(roles, 1)]
    named = [message(number, {"role": "x"}, turn=turn) for number, turn in enumerate("aabbcc", 1)]
    for history, wanted in ((plain, [6, 3, 1, 1]), (named, [5, 3, 1, 1])):
        for turns, first in enumerate(wanted, 1):
            start, found = select(history, turns=turns, max_tokens=None, pair_safe=True, whole=True)
            assert history[start].number == first
            assert found == (turns <= 3)


def test_a_window_may_cut_a_turn() -> None:
    """The first turn of a window that does not reach back to the first message may have begun before it."""
    window = [message(number, {}, turn=turn) for number, turn in enumerate("aabb", 7)]
    assert select(window, turns=2, max_tokens=None, pair_safe=True, whole=False) == (2, False)
    assert select(window, turns=2, max_tokens=None, pair_safe=True, whole=True) == (0, True)
