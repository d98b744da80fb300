"""A real browser, one for all tests: Debian's Chromium without a window, and axe to ask whether a page can be
used by everybody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0  # of a machine that does other things


@dataclass(frozen=True)
class Browser:
    """Chromium with what the tests ask of it; `driver` is selenium's."""

    driver: Any

    def open(self, address: str, *, width: int = 1200, theme: str = "light") -> None:
        """Show a page, once its charts are drawn."""
        self.resize(width)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(address)
        self.wait("return document.body.dataset.drawn !== undefined")

    def resize(self, width: int) -> None:
        """Make the window as wide as a screen of so many pixels."""
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: object) -> Any:
        """What a script returns, once that is true."""
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, PATIENCE_S, 0.1).until(lambda _: self.run(script, *arguments))

    def complaints(self) -> list[str]:
        """What the console has said since the last call, but for a missing icon."""
        return [
            entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]
        ]

    def violations(self) -> list[str]:
        """What axe finds that is serious or worse: rule, and the elements."""
        axe_core = pytest.importorskip("axe_core_python")
        script = (Path(axe_core.__file__).parent / "axe.min.js").read_text()
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": script})
        found = self.driver.execute_async_script(
            "axe.run().then(found => arguments[0](found.violations.map("
            "one => [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 200))])))"
        )
        return [f"{rule}: {nodes}" for impact, rule, nodes in found if impact in ("serious", "critical")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Skips where Chromium, its driver or selenium are missing: `make test` installs them."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are missing: .ci/system-packages installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(PATIENCE_S)
    yield Browser(opened)
    opened.quit()
