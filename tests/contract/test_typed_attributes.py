"""Attributes of public classes say their type: checkers read what is written in a typed package, else they guess."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, Final

import orchestrator
import orchestrator.workers.testing
from tests.helpers.cases import each_case

MODULES: Final = [orchestrator, orchestrator.workers.testing]
"""The types of `orchestrator.sync` are generated from those of `orchestrator`."""


class Guessed:
    """What the check must find, among what it must not."""

    said: int

    def __init__(self, given: int) -> None:
        self.given = given
        self.constant = False
        self.said = int("1")
        self.also_said: int = int("1")
        self._private = int("1")
        self.guessed = int("1")


def family(classes: list[type]) -> list[type]:
    """These classes, and bases of our own."""
    ours = {module.__name__.partition(".")[0] for module in MODULES}
    bases = {base for cls in classes for base in cls.__mro__ if base.__module__.partition(".")[0] in ours}
    return sorted({*classes, *bases}, key=lambda cls: cls.__qualname__)


def unsaid(classes: list[type]) -> list[str]:
    """Public attributes that are set to what is neither a parameter nor a constant, and have no annotation."""
    said, found = set[str](), list[tuple[str, str]]()
    for cls in family(classes):
        said |= inspect.get_annotations(cls).keys()
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))):
            if isinstance(node, ast.AnnAssign):
                said.add(ast.unparse(node.target).removeprefix("self."))
            elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Name | ast.Constant):
                for target in node.targets:
                    owner, _, name = ast.unparse(target).partition(".")
                    if owner == "self" and name.isidentifier() and not name.startswith("_"):
                        found.append((cls.__name__, name))
    return [f"{cls}.{name}" for cls, name in found if name not in said]


@each_case("module", MODULES)
def test_attributes_of_public_classes_say_their_type(module: Any) -> None:
    """Whoever uses what a package exports sees the same types in every checker."""
    public = [getattr(module, name) for name in module.__all__]
    assert unsaid([value for value in public if inspect.isclass(value)]) == []


def test_an_attribute_without_a_type_is_found() -> None:
    """The check finds a guess, and takes what is said elsewhere."""
    assert unsaid([Guessed]) == ["Guessed.guessed"]
