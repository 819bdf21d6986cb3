"""A browser that asks for less motion gets none from the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.helpers.browser import Browser
    from tests.helpers.site import Site

# Adds motion to everything, as a later style sheet may, and tells what remains of it.
MOVE = """
const sheet = [...document.styleSheets].find(one => one.href && one.href.includes('ui.css'));
sheet.insertRule('@keyframes turning { to { transform: rotate(1turn) } }', 0);
sheet.insertRule('main { transition: opacity 1s; animation: turning 9s infinite }', 0);
const style = getComputedStyle(document.querySelector('main'));
return [style.animationName, style.transitionProperty === 'none', document.getAnimations().length];
"""


@pytest.mark.parametrize(("wish", "left"), [("reduce", ["none", True, 0]), ("no-preference", ["turning", False, 1])])
def test_reduced_motion(site: Site, browser: Browser, wish: str, left: list[object]) -> None:
    """Neither animations nor transitions run."""
    features = [{"name": "prefers-reduced-motion", "value": wish}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.log_in(site.new_link())
    assert browser.run(MOVE) == left
