"""What users import: complete, light, and the same arguments wherever a task can be submitted."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orchestrator
import orchestrator.workers.testing
from orchestrator import TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.core import errors
from orchestrator.core.public_names import homes
from orchestrator.tasks.options import TASK_OPTIONS
from orchestrator.tasks.submission import Submission
from orchestrator.workers.testing import Team


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


@pytest.mark.parametrize("call", [Orchestrator.submit, TaskContext.submit, Submission.__init__, Team.run])
def test_a_task_is_submitted_with_the_same_arguments_everywhere(call: Any) -> None:
    """Every way to submit takes the declared options, whose defaults are not sent."""
    parameters = inspect.signature(call).parameters
    assert list(parameters)[1:3] == ["skill", "args"]
    assert str(parameters["options"].annotation) in {"Unpack[TaskOptions]", "typing.Unpack[TaskOptions]"}
    assert all(
        option.text and (option.metavar or option.type is bool) and option.flag for option in TASK_OPTIONS.values()
    )


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
