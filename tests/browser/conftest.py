"""A browser per process of pytest, and a team with a dashboard per module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.browser import MISSING, Browser, is_installed, running_browser
from tests.helpers.site import Site, running_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The window, which all tests of a process share."""
    if not is_installed():
        pytest.skip(MISSING)
    with running_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Browser:
    """The window without cookies, sizes and themes of other tests."""
    window.open("about:blank")
    for command, values in (
        ("Network.clearBrowserCookies", {}),
        ("Emulation.clearDeviceMetricsOverride", {}),
        ("Emulation.setEmulatedMedia", {"features": []}),
        ("Emulation.setScriptExecutionDisabled", {"value": False}),
    ):
        window.driver.execute_cdp_cmd(command, values)
    window.complaints()
    window.asked()
    return window


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, running_server: Callable[[str], RedisServer], window: Browser
) -> Iterator[Site]:
    """A team at work, with tasks in all states, and its dashboard."""
    del window  # without a browser nothing starts
    with running_site(tmp_path_factory.mktemp("site"), running_server) as running:
        yield running
