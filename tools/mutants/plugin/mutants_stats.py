"""Pytest plugin: lets mutmut record its tests although some of them fail, and notes which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FAILED = Path(__file__).parents[3] / "mutants/failed-tests.txt"


def pytest_configure(config: pytest.Config) -> None:
    """Go on after a failure while tests are recorded."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        config.option.maxfail = 0


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails without a mutant."""
    if report.failed and os.environ.get("MUTANT_UNDER_TEST") == "stats":
        with FAILED.open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report success to mutmut."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        session.exitstatus = 0
