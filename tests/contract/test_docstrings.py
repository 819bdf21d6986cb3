"""Every public name explains itself: the reference pages of the manual are made from docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

import orchestrator
from orchestrator.tasks.options import TASK_OPTIONS
from tools.reference.api import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON: Final = frozenset({"self", "cls", "reason", "actor", "op_id", "name", "path", "paths", "limit", "timeout"})
"""Parameters that the docstring of the class explains, or that say all by their name."""
INTERNAL: Final = frozenset(
    {"context", "data", "known_limits", "max_bytes", "now", "parent", "present", "proof", "why"}
)
"""Parameters of methods that only workers and clients call."""
OPTIONS: Final = frozenset({"skill", "args", *TASK_OPTIONS})
"""Explained by `Submission` and the reference page of task options."""


def public_names() -> list[tuple[str, Any]]:
    """Every public name with its object."""
    modules = ["orchestrator", *PACKAGES]
    return [
        (f"{module}.{name}", getattr(importlib.import_module(module), name))
        for module in modules
        for name in importlib.import_module(module).__all__
    ]


def members(public: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class itself defines."""
    for name, value in vars(public).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def fields(public: type) -> list[str]:
    """The public fields of a frozen value."""
    if issubclass(public, msgspec.Struct):
        return list(public.__struct_fields__)
    return [each.name for each in dataclasses.fields(public)] if dataclasses.is_dataclass(public) else []


def words(*texts: str | None) -> set[str]:
    """The words of some docstrings, each in the singular too."""
    found = set(re.findall(r"[a-z_0-9]+", " ".join(text or "" for text in texts).lower()))
    return found | {word.removesuffix("s") for word in found}


def unexplained(public: type) -> Iterator[str]:
    """Members without a docstring; parameters and fields that no docstring names."""
    about = [base.__doc__ for base in public.__mro__ if base.__module__.startswith("orchestrator")]
    for name, function in members(public):
        if not function.__doc__:
            yield name
        known = COMMON | INTERNAL | OPTIONS | words(function.__doc__, *about)
        parameters = [each.rstrip("_") for each in inspect.signature(function).parameters]
        yield from (f"{name}({each})" for each in parameters if each not in known and each.rstrip("s") not in known)
    attributes = re.findall(r'^    """.*?"""', inspect.getsource(public), re.DOTALL | re.MULTILINE)
    named = words(*about, *attributes)
    yield from (field for field in fields(public) if not field.startswith("_") and field not in named)


def test_every_name_has_a_docstring() -> None:
    """Functions and classes say what they are; a class inherits no text from its base."""
    without = [
        name for name, public in public_names() if callable(public) and not vars(public).get("__doc__", public.__doc__)
    ]
    assert without == []


def test_every_member_is_explained() -> None:
    """Each public method and property has a docstring, which names its parameters."""
    missing = {
        name: found
        for name, public in public_names()
        if inspect.isclass(public)
        and not name.startswith("orchestrator.sync.")  # tests/contract/test_sync_client.py compares it
        and not issubclass(public, Enum)
        and (found := list(unexplained(public)))
    }
    assert missing == {}


def test_every_error_has_an_exit_code() -> None:
    """`orc` exits with a code for each public error."""
    errors = [
        public
        for _, public in public_names()
        if inspect.isclass(public) and issubclass(public, orchestrator.OrchestratorError)
    ]
    assert [error.__name__ for error in errors if not isinstance(error.exit_code, int)] == []
