"""A real browser without a screen: finds things as a person does, and tells what it asked for and refused."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver.remote.webelement import WebElement

AXE: Final = (Path(__file__).parents[1] / "browser" / "vendor" / "axe.min.js").read_text()
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
MISSING: Final = "needs chromium and chromedriver, as Debian's chromium and chromium-driver have them"
PATIENCE_S: Final = 20.0
_T = TypeVar("_T")


def is_installed() -> bool:
    """Return whether the browser and its driver are there."""
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    """Drives one window. Waits look again until what they want is there."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Go to an address."""
        self.driver.get(address)

    def log_in(self, link: str) -> None:
        """Log in by a one-time link."""
        self.open(link)
        self.click(lambda: self.button("Log in"))
        wait_until(lambda: "/login" not in self.path, "the overview", PATIENCE_S)

    @property
    def text(self) -> str:
        """The visible text of the page."""
        return self._again(lambda: self.driver.find_element(By.TAG_NAME, "body").text)

    @property
    def path(self) -> str:
        """The address without scheme and host."""
        return "/" + self.driver.current_url.split("/", 3)[3]

    def see(self, text: str, *, within_s: float = PATIENCE_S) -> None:
        """Wait until a text is on the page."""
        wait_until(lambda: text in self.text, lambda: f"{text!r} on {self.path}:\n{self.text}", within_s)

    def all(self, css: str) -> list[WebElement]:
        """Return the elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """Wait for the first visible element of a selector."""
        return self._first(lambda: self.all(css), lambda _: True, f"a visible {css}")

    def link(self, words: str) -> WebElement:
        """Wait for the link with these words."""
        return self._named("a", words)

    def button(self, words: str) -> WebElement:
        """Wait for the visible button with these words."""
        return self._named("button", words)

    def summary(self, words: str) -> WebElement:
        """Wait for what opens a folded part."""
        return self._named("summary", words)

    def click(self, find: Callable[[], WebElement]) -> None:
        """Click on what `find` finds; a patch may replace it meanwhile."""
        self._again(lambda: find().click())

    def type(self, css: str, text: str) -> None:
        """Write into a field, in place of what it has."""
        field = self.one(css)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """Return tag, name and text of the element that has the focus."""
        return str(
            self.run(
                "const e=document.activeElement;"
                "return [e.tagName.toLowerCase(), e.name || e.id || '', e.textContent.trim().slice(0, 40)].join(' ')"
            )
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script through the debugging protocol, which no policy of the page forbids."""
        return self.driver.execute_script(script, *arguments)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a size in CSS pixels; narrower than windows can be."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def theme(self, name: str) -> None:
        """Let the system prefer a theme."""
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]}
        )

    def scripts(self, *, on: bool) -> None:
        """Run the scripts of pages, or not."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def screenshot(self, path: Path) -> None:
        """Write the page as PNG."""
        path.write_bytes(self.driver.get_screenshot_as_png())

    def faults_of_access(self) -> list[str]:
        """Return what axe finds serious or critical on the page, with the element and the reason."""
        self._evaluate(AXE + ";0")
        found = self._evaluate(
            f"axe.run(document, {{runOnly: {json.dumps(TAGS)}, resultTypes: ['violations']}})"
            ".then(found => JSON.stringify(found.violations))"
        )
        return [
            f"{self.path}: {rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in json.loads(found)
            if rule["impact"] in {"serious", "critical"}
            for node in rule["nodes"]
        ]

    def complaints(self) -> list[str]:
        """Return what the browser has logged since the last call: broken policies, failed loads, errors of scripts."""
        return [str(entry["message"]) for entry in self._log("browser")]

    def asked(self) -> set[str]:
        """Return the addresses that the browser asked for since the last call."""
        found = set()
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(message["params"]["request"]["url"])
        return {address for address in found if address.startswith("http")}

    def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def _evaluate(self, expression: str) -> Any:
        answer = self.driver.execute_cdp_cmd(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _named(self, tag: str, words: str) -> WebElement:
        return self._first(lambda: self.all(tag), lambda each: words in each.text, f"<{tag}> {words!r}")

    def _first(
        self, look: Callable[[], list[WebElement]], wanted: Callable[[WebElement], bool], what: str
    ) -> WebElement:
        def found() -> list[WebElement]:
            return [each for each in look() if each.is_displayed() and wanted(each)]

        def wait() -> WebElement:
            return wait_until(found, lambda: f"{what} on {self.path}:\n{self.text}", PATIENCE_S)[0]

        return self._again(wait)

    def _again(self, find: Callable[[], _T]) -> _T:
        """Look again when a patch has replaced an element between two questions."""
        for _ in range(20):
            try:
                return find()
            except (StaleElementReferenceException, NoSuchElementException):
                continue
        return find()


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser that reaches this machine alone."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--window-size=1280,900",
        f"--user-data-dir={folder}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


__all__ = ["MISSING", "Browser", "Keys", "is_installed", "running_browser"]
