"""Picking submitted tasks, and the messages of assertions about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from unittest.mock import ANY

import pytest
from pydantic import BaseModel

from orchestrator.tasks.model import TaskState
from orchestrator.testing.submitted import (
    Submitted,
    check_not_submitted,
    check_submitted,
    select,
    wanted,
)
from tests.helpers.cases import each_case

ONE = Submitted("1", "scan", {"path": "/a", "deep": {"er": [1, 2], "x": None}}, TaskState.READY)
TWO = replace(ONE, id="2", skill="link", args={"path": "/b"}, session="101", state=TaskState.DEAD)
BOTH = [ONE, TWO]


class Scan(BaseModel):
    """Arguments as a model."""

    path: str


@each_case(
    ("args", "fits"),
    [
        ({}, True),
        ({"path": "/a"}, True),
        ({"path": PurePosixPath("/a")}, True),
        ({"deep": {"er": [1, 2]}}, True),
        ({"deep": {"er": (1, ANY)}}, True),
        ({"deep": {"x": None}}, True),
        (Scan(path="/a"), True),
        ({"path": "/b"}, False),
        ({"other": ANY}, False),
        ({"deep": {"er": [1]}}, False),
        ({"deep": {"er": {"1": 2}}}, False),
        ({"path": {"a": 1}}, False),
        ({"path": datetime.now(UTC)}, False),
    ],
)
def test_arguments_fit_as_a_subset(args: dict[str, object] | BaseModel, fits: bool) -> None:  # noqa: FBT001
    """Named arguments must have the values, in depth; others may be there; a list is compared as a whole."""
    assert select([ONE], wanted("scan", args, None)) == ([ONE] if fits else [])


def test_tasks_are_picked_by_skill_and_session() -> None:
    """None fits everything."""
    assert select(BOTH, wanted(None, None, None)) == BOTH
    assert select(BOTH, wanted("link", None, None)) == [TWO]
    assert select(BOTH, wanted(None, None, "101")) == [TWO]
    assert select(BOTH, wanted("scan", None, "101")) == []


def test_a_submitted_task_is_found() -> None:
    """The assertion gives what it found; so often as was asked for."""
    assert check_submitted(BOTH, wanted("scan", None, None), times=None) == [ONE]
    assert check_submitted(BOTH, wanted("scan", None, None), times=1) == [ONE]
    assert check_submitted(BOTH, wanted("other", None, None), times=0) == []
    check_not_submitted(BOTH, wanted("other", None, None))


def test_the_message_shows_what_was_submitted_instead() -> None:
    """The nearest tasks come first, each with what does not fit."""
    with pytest.raises(AssertionError) as failed:
        check_submitted([TWO, ONE], wanted("scan", {"path": "/c"}, None), times=None)
    assert str(failed.value) == (
        "a task of skill 'scan' with {'path': '/c'} was not submitted; submitted were:\n"
        """  scan(path='/a', deep={"er": [1, 2], "x": null}) [ready]  <- path is '/a', not '/c'\n"""
        "  link(path='/b') session='101' [dead]  <- skill is 'link', not 'scan'"
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"deep": {"er": [1, 3]}}, "deep.er[1] is 2, not 3"),
        ({"deep": {"er": [1]}}, "deep.er is [1, 2], not [1]"),
        ({"deep": 7}, 'deep is {"er": [1, 2], "x": null}, not 7'),
        ({"name": "x"}, "name is missing"),
    ],
)
def test_the_message_names_the_place(args: dict[str, object], says: str) -> None:
    """What does not fit is named by its path."""
    assert wanted("scan", args, None).mismatch(ONE) == says


def test_the_message_counts() -> None:
    """A wrong number is told, and a forbidden task is shown."""
    with pytest.raises(AssertionError, match="'scan' was once submitted, expected 2 times; submitted were:\n  scan"):
        check_submitted(BOTH, wanted("scan", None, None), times=2)
    with pytest.raises(AssertionError, match="a task was 2 times submitted, expected once"):
        check_submitted(BOTH, wanted(None, None, None), times=1)
    with pytest.raises(AssertionError, match="nothing was submitted at all"):
        check_submitted([], wanted("scan", None, None), times=None)
    with pytest.raises(AssertionError, match=r"in session '101' was once submitted, expected none:\n  link\(path"):
        check_not_submitted(BOTH, wanted(None, None, "101"))


def test_a_long_list_is_cut() -> None:
    """The message of a big test stays readable."""
    many = [replace(ONE, id=str(number), args={"text": "x" * 500}) for number in range(50)]
    with pytest.raises(AssertionError) as failed:
        check_submitted(many, wanted("link", None, None), times=None)
    lines = str(failed.value).splitlines()
    assert lines[-1] == "  … and 30 more"
    assert max(map(len, lines)) < 200


def test_the_line_of_a_child_leaves_out_the_key_made_for_it() -> None:
    """A key that its parent's context derived says nothing; one that was given does."""
    assert str(replace(TWO, parent="7", key="7/1")) == "link(path='/b') session='101' [dead]"
    assert str(replace(TWO, parent="7", key="mine")) == "link(path='/b') session='101' key='mine' [dead]"
