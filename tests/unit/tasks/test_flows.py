"""Flows before they are sent: results in arguments, the order of the tasks, their keys."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from orchestrator import Flow, InvalidInput
from orchestrator.tasks.flows import MarkedArguments, find_results, keys_of


def test_arguments_without_results_are_not_copied() -> None:
    """Arguments in which no result stands are those that were given; others are copied."""
    flow = Flow("a")
    page = flow.task("x")
    plain: dict[str, Any] = {"a": [1, {"b": ()}], "c": "text"}
    assert MarkedArguments(plain).values is plain
    given: dict[str, Any] = {"a": [page.result, plain], "b": plain}
    marked = MarkedArguments(given)
    assert marked.values is not given
    copy = {"a": [1, {"b": []}], "c": "text"}
    assert marked.with_results(lambda _: 7) == {"a": [7, copy], "b": copy}
    assert given == {"a": [given["a"][0], plain], "b": plain}
    assert MarkedArguments(MappingProxyType({"n": page.result})).with_results(lambda _: 7) == {"n": 7}


def test_shared_values() -> None:
    """A value that stands in many places is searched and copied once, so that 2^60 places take no time."""
    flow = Flow("a")
    page = flow.task("x")
    for leaf in (page.result, None):
        value: list[Any] = [leaf]
        for _ in range(60):
            value = [value, value]
        marked = MarkedArguments({"n": value})
        assert len(marked.results) == (leaf is not None)
        flow.task("y", {"n": value})
    endless: list[Any] = [page.result]
    endless.append(endless)
    assert [result.task for result in find_results({"n": endless})] == [page]


def test_results_at_any_depth_and_number() -> None:
    """Each place of a result is found, also deep ones, and one result may stand in many places."""
    flow = Flow("a")
    pages = [flow.task("x") for _ in range(12)]
    taken = [page.result for page in pages]
    value: Any = [*taken, taken[0], "null"]
    for _ in range(500):
        value = [value]
    marked = MarkedArguments({"n": value})
    assert marked.results == taken
    args, places = marked.cut(msgspec.json.encode(marked.values), {page.name: page.name for page in pages})
    assert [place.task for place in places] == [*(page.name for page in pages), pages[0].name]
    assert all(args[place.offset : place.offset + 4] == b"null" for place in places)
    assert args.count(b"null") == 14


def test_tasks_stay_in_the_order_in_which_they_were_added() -> None:
    """Only a task that was added before one of its predecessors comes behind it."""
    flow = Flow("a")
    a = flow.task("a")
    late: dict[str, Any] = {}
    flow.task("b", late, after=[a])
    flow.task("c")
    assert [member.name for member in flow.members()] == ["a", "b", "c"]
    late["n"] = flow.task("d").result
    assert [member.name for member in flow.members()] == ["a", "c", "d", "b"]


def test_keys() -> None:
    """The first task has the key of the flow, the others a name behind it; both together have a most length."""
    flow = Flow("a")
    flow.task("x")
    flow.task("y")
    members = flow.members()
    assert keys_of(None, members) == [None, None]
    assert keys_of("order-7", members) == ["order-7", "order-7/y"]
    assert keys_of("k" * 254, members)[1] == "k" * 254 + "/y"
    with pytest.raises(InvalidInput, match="with the name of task 'y' it has 257 bytes"):
        keys_of("k" * 255, members)
    with pytest.raises(InvalidInput, match="key"):
        keys_of("", members)
