"""A secret of the settings in the text of an exception is masked before the text is stored."""

from __future__ import annotations

import pytest

from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.settings import Settings
from orchestrator.workers.runtime.verdicts import ERROR_BYTES, describe, one_line, rejected, traceback_of
from orchestrator.workers.signals import Retry
from tests.helpers.cases import each_case

PASSWORD = "c4n4ry/#@%"
ENCODED = "c4n4ry%2F%23%40%25"
URL = f"redis://:{ENCODED}@h/0"


@pytest.fixture
def _known() -> None:
    LiveSettings(Settings.model_validate({"redis": {"url": URL}, "control": {"secret": "c4n4ry" * 4}}))


def _raised(text: str) -> BaseException:
    try:
        try:
            raise KeyError(text)
        except KeyError as first:
            first.add_note(text)
            raise ExceptionGroup(text, [ValueError(text), Retry(reason=text)]) from first
    except ExceptionGroup as raised:
        return raised


@pytest.mark.usefixtures("_known")
@each_case(
    "text",
    [
        PASSWORD, ENCODED, URL, "http://u:c4n4ry@h/?x=1", "postgres://h/db?user=a&password=c4n4ry", "c4n4ry" * 4,
        " " * 600 + PASSWORD, "x" * 300_000 + PASSWORD + "x" * 300_000 + PASSWORD, "x" * (500 - 9) + PASSWORD,
        *("x" * (ERROR_BYTES // 2 - shift) + PASSWORD + "y" * ERROR_BYTES for shift in (3, 200, 230)),
    ],
)  # fmt: skip
def test_stored_texts(text: str) -> None:
    """Reasons, tracebacks, notes and groups have none of it, however long the text is and wherever it is cut."""
    raised = _raised(text)
    verdict = rejected(text)
    stored = [one_line(text), describe(raised), verdict.reason, verdict.payload.decode(), traceback_of(raised).decode()]
    assert [one for one in stored if "c4n" in one] == []


def test_other_texts_stay() -> None:
    """What only looks like a secret may be what the reader of an error needs."""
    text = "TypeError: token: expected str, got int; password=None"
    assert one_line(text) == text
