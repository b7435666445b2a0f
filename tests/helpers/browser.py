"""Controls a headless Chromium like a person does: with the labels, links and buttons on the page."""

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_APPLICATIONS = "/Applications/{0}.app/Contents/MacOS/{0}"  # programs of a Mac are not in PATH
_MAC = tuple(map(_APPLICATIONS.format, ("Chromium", "Google Chrome")))
_SECTION = "//section[not(@hidden)]"
_TEXTS = """return [...document.querySelectorAll(arguments[0])]
  .filter((node) => node.checkVisibility()).map((node) => node.innerText)"""
# Texts whose contrast to what is behind them is less than 4.5: [text, ratio].
_CONTRAST = """
const channels = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
const luminance = (color) => color.slice(0, 3).map((channel) => channel / 255)
  .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4))
  .reduce((sum, channel, number) => sum + channel * [0.2126, 0.7152, 0.0722][number], 0);
const behind = (node) => {
  const color = channels(getComputedStyle(node).backgroundColor);
  return color[3] === 1 ? color : over(color, node.parentElement ? behind(node.parentElement) : [255, 255, 255, 1]);
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const faint = []; let seen = 0;
const judge = (node, text) => {
  const back = behind(node), ink = over(channels(getComputedStyle(node).color), back);
  const [high, low] = [luminance(ink), luminance(back)].sort((a, b) => b - a);
  const ratio = (high + 0.05) / (low + 0.05);
  seen += 1;
  if (ratio < 4.5) faint.push([text, ratio]);
};
for (let node = walker.nextNode(); node; node = walker.nextNode())
  if (node.data.trim() && node.parentElement.checkVisibility()) judge(node.parentElement, node.data.trim());
for (const node of document.querySelectorAll("input, textarea, select"))
  if (node.checkVisibility()) judge(node, node.id);
return [seen, faint];
"""


class Browser:
    """A window of Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(address)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, css: str) -> list[Any]:
        script = "return [...document.querySelectorAll(arguments[0])].filter((node) => node.checkVisibility())"
        return list(self.run(script, css))

    def texts(self, css: str) -> list[str]:
        return [text.strip() for text in self.run(_TEXTS, css)]

    def wait(self, ready: Callable[[], Any], seconds: float = 30) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if result := ready():
                return result
            time.sleep(0.05)
        pytest.fail(f"nothing after {seconds} seconds: {self.texts('body')}")

    def go(self, name: str) -> None:
        self.wait(lambda: [link for link in self.all("nav a") if link.text == name])[0].click()
        self.wait(lambda: self.texts("section h2") == [name])

    def field(self, label: str) -> Any:
        path = f"{_SECTION}//label[starts-with(normalize-space(), '{label}')]"
        return self.driver.find_element("xpath", path).get_property("control")

    def type(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        if max(text) < "\U00010000":
            field.send_keys(text)
        else:  # which the driver has no keys for
            self.run("arguments[0].value = arguments[1]", field, text)

    def pick(self, label: str, name: str) -> None:
        self.field(label).find_element("xpath", f"option[normalize-space()='{name}']").click()

    def press(self, button: str) -> None:
        self.driver.find_element("xpath", f"{_SECTION}//button[normalize-space()='{button}']").click()
        self.answered()

    def answered(self) -> None:
        """Waits until a result or an error is shown."""
        self.wait(lambda: not self.all("[aria-busy]") and (self.said() or self.texts("section .error")))

    def said(self) -> str:
        """Returns the text in which a screen reader announces the result."""
        return str(self.run("return document.querySelector('section:not([hidden]) .said').textContent"))

    def bars(self) -> list[tuple[str, str]]:
        names, numbers = self.texts(".bars .name"), self.texts(".bars .number")
        return list(zip(names, numbers, strict=True))

    def contrast(self) -> list[Any]:
        """Returns the texts whose contrast is too low, with the contrast ratio of each."""
        seen, faint = self.run(_CONTRAST)
        assert seen > 10
        return list(faint)

    def stop(self) -> Any:
        """Returns the element with the keyboard focus; checks that its outline is visible."""
        assert self.run("return getComputedStyle(document.activeElement).outline").endswith("solid 3px")
        return self.driver.switch_to.active_element

    def tab_to(self, reached: Callable[[Any], bool]) -> Any:
        """Presses the tab key until `reached` is true of the element with the keyboard focus; returns the element."""
        for _ in range(40):
            self.driver.switch_to.active_element.send_keys("\ue004")
            if reached(focused := self.stop()):
                return focused
        pytest.fail("the keyboard does not get there")

    def complaints(self) -> list[str]:
        """Returns the browser's messages since the last call: errors, and breaches of the content security policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def picture(self, path: Path) -> None:
        height, width = self.run("return [document.documentElement.scrollHeight, innerWidth];")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def chromium() -> str | None:
    names = ("chromium", "google-chrome", *_MAC)
    return next((program for program in map(shutil.which, names) if program), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Opens a browser; skips the test if Chromium, its driver or selenium is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program, driver = chromium(), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium and its driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(window)
    finally:
        window.quit()
