"""What users import: complete, light, and the same arguments wherever a task can be submitted."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

import orchestrator
import orchestrator.workers.testing
from orchestrator import TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.core import errors
from orchestrator.core.public_names import homes
from orchestrator.tasks.submission import Submission, SubmitOptions


@pytest.mark.parametrize("module", [orchestrator, orchestrator.workers.testing], ids=lambda module: module.__name__)
def test_every_exported_name_is_there(module: Any) -> None:
    """Type checkers see the names that exist, and no other name is invented."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in imports for alias in node.names} == homes(module.__name__)
    assert list(module.__all__) == list(homes(module.__name__))
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name) is not None
        assert not inspect.ismodule(getattr(module, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    assert set(module.__all__) <= set(dir(module))


def test_every_exception_is_exported() -> None:
    """Whatever may be raised on purpose can be caught by a name from the package root."""
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised <= set(homes("orchestrator"))
    assert all(issubclass(getattr(errors, name), errors.OrchestratorError) for name in raised)


def _parameters(function: Any) -> dict[str, object]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in {"self", "skill", "args"}
    }


def test_a_task_is_submitted_with_the_same_arguments_everywhere() -> None:
    """`Orchestrator.submit`, `TaskContext.submit` and `Submission` agree in names, order and defaults."""
    wanted = {field.name: field.default for field in fields(Submission) if field.name not in {"skill", "args"}}
    assert list(_parameters(Orchestrator.submit)) == list(_parameters(TaskContext.submit)) == list(wanted)
    wanted["tags"] = ()
    assert _parameters(Orchestrator.submit) == _parameters(TaskContext.submit) == wanted
    assert list(SubmitOptions.__annotations__) == list(wanted)


@pytest.mark.parametrize(
    "module",
    ["orchestrator", "orchestrator.workers", "orchestrator.workers.testing", "orchestrator.workers.testing.plugin"],
)
def test_importing_a_package_loads_little(module: str) -> None:
    """The bare import brings in none of the libraries that take time to load."""
    heavy = ["redis", "pydantic", "pydantic_settings", "structlog", "anyio", "asyncio", "msgspec", "cyclopts", "rich"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exit_codes_are_those_of_the_error_tree() -> None:
    """Each exit code that the tree in the module's docstring names is the class's own."""
    lines = (errors.__doc__ or "").splitlines()
    for line in lines:
        name, _, rest = line.lstrip("├└│─ ").partition(" ")
        if "(exit " in rest:
            assert getattr(errors, name).exit_code == int(rest.partition("(exit ")[2].partition(")")[0]), name
