"""The first minutes of a newcomer: type `orc up`, open the link that it prints, and find the rest on the pages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.testing.waiting import wait_until
from tests.helpers.site import AGENTS, LINK
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.helpers.browser import Browser

WORKERS = 2


@contextmanager
def _typed_up(folder: Path) -> Iterator[tuple[Terminal, str]]:
    """Type `orc up` with a Redis of its own; give the link that it prints."""
    terminal = Terminal(folder, ORC_DASHBOARD__PORT="0")
    (folder / "my_agents.py").write_text(AGENTS)
    with terminal.start("up", "my_agents:agent", "--processes", str(WORKERS)) as up:
        found = LINK.search(wait_until(lambda: LINK.search(up.output) and up.output, "the link", 60) or "")
        assert found is not None
        wait_until(lambda: up.output.count("worker_started") == WORKERS, lambda: f"the workers in {up.output}", 60)
        yield terminal, found[1]
        up.terminate()
        assert up.wait_exit(40) == 0, up.output
    assert not terminal.processes()


def _submit(browser: Browser, skill: str, **fields: str) -> str:
    """Submit a task by the form, as it is found from the navigation; return its path."""
    browser.click(lambda: browser.link("Submit"))
    browser.click(lambda: browser.link(skill))
    for name, text in fields.items():
        labels = "[...document.querySelectorAll('.field label')]"
        number = browser.run(f"return {labels}.find(each => each.innerText.startsWith({name!r})).htmlFor")
        browser.type(f"#{number}", text)
    browser.click(lambda: browser.button("Submit"))
    wait_until(lambda: browser.path.startswith("/tasks/"), lambda: f"the task in\n{browser.text}", 20)
    return browser.path


def test_the_first_minutes(tmp_path: Path, browser: Browser) -> None:
    """Submit, watch, answer, revive, stop: each is found on the pages, and each page says what came of it."""
    with _typed_up(tmp_path) as (terminal, link):
        browser.log_in(link)
        browser.see("Nothing needs attention")

        _submit(browser, "count", to="40", seconds="0.1")
        browser.run("window.loaded = 1")
        browser.see("number 3")
        browser.see("running")
        browser.see("number 39")
        browser.see("succeeded")
        assert browser.run("return window.loaded") == 1, "the page was loaded again"

        _submit(browser, "publish", text="the news")
        browser.see("It asks: Publish the news?")
        browser.click(lambda: browser.button("yes"))
        browser.see("said yes")

        _submit(browser, "stumble", reason="no such table")
        browser.see("ValueError: no such table")
        (terminal.folder / "repaired").touch()
        browser.click(lambda: browser.link("Dead letters"))
        browser.see("no such table")
        browser.click(lambda: browser.link("Retry"))
        browser.click(lambda: browser.button("Retry 1 task"))
        browser.see("1 requeued")
        browser.see("succeeded")

        browser.click(lambda: browser.summary("STOP"))
        browser.type(".stop input[name=reason]", "enough for today")
        browser.click(lambda: browser.button("Stop all"))
        wait_until(lambda: "/control/" in browser.path, "the page of the command", 20)
        browser.see("enough for today")
        workers = terminal.orc("workers", "list", "-o", "id").out.split()
        assert len(workers) == WORKERS
        for worker in workers:
            wait_until(lambda name=worker: _answered(browser, name), lambda: f"receipts in\n{browser.text}", 20)  # type: ignore[misc]
        browser.see("0 missing")
        assert browser.complaints() == []


def _answered(browser: Browser, worker: str) -> bool:
    rows = browser.run("return [...document.querySelectorAll('main tbody tr')].map(each => each.innerText)")
    return any(worker in row and "has not answered" not in row for row in rows)
