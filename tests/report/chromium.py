"""A real browser without a window: Debian's chromium, controlled over two pipes (the DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = shutil.which("chromium") or "/usr/bin/chromium"
TIMEOUT_S = 60
_ENDS = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Python program that moves the pipes to file descriptors 3 and 4 and then becomes the browser."""

CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = color => rgba(color).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    if (element.ownerSVGElement && element.closest('.box'))
      return getComputedStyle(element.closest('.box').querySelector('rect')).fill;
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return 'white';
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!text || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element.ownerSVGElement ? style.fill : style.color), light(ground(element))]
      .sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5)
      poor.push(`${ratio.toFixed(1)} ${element.tagName}.${element.getAttribute('class')}: ${text.slice(0, 40)}`);
  }
  return poor;
})()
"""
"""JavaScript: the texts whose contrast with their background is less than 4.5 to 1."""

HOLES = """
['.cards', '.without-answer', '.tiles', '.racks'].flatMap(name => [...document.querySelectorAll(name)]).filter(one => {
  const end = Math.max(...[...one.children].slice(-1).map(last => last.getBoundingClientRect().right));
  return one.getClientRects().length && one.getBoundingClientRect().right - end > 2;
}).map(one => one.className + ' of ' + one.children.length)
"""
"""JavaScript: the grids whose last row is not filled."""

SMALL = """
[...document.querySelectorAll('body *')].filter(one => [...one.childNodes].some(n => n.nodeType === 3 && n.data.trim())
  && one.getClientRects().length && !one.closest('.hidden')).map(one => {
  const svg = one.ownerSVGElement, scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return [parseFloat(getComputedStyle(one).fontSize) * scale, one.textContent.trim().slice(0, 30)];
}).filter(([size]) => size < 10).map(([size, text]) => size.toFixed(1) + ' ' + text)
"""
"""JavaScript: the texts that are smaller than ten pixels, also in scaled drawings."""

_OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
_WIDER = """
[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1
  && !one.closest('.scroll')).map(one => one.tagName + '.' + one.className).slice(0, 5)
"""
"""JavaScript: the elements that the right edge cuts off."""


class Chromium:
    """A browser with one page; `events` has its events since the last visit."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium.", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
                 f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]  # fmt: skip
        argv = [sys.executable, "-c", _ENDS, str(to_browser), str(from_browser), BINARY, *flags]
        quiet, environment = subprocess.DEVNULL, {**os.environ, "TMPDIR": self._profile.name}
        self._process = subprocess.Popen(
            argv, env=environment, pass_fds=(to_browser, from_browser), stdout=quiet, stderr=quiet
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result. Raises RuntimeError with the browser's error."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"{BINARY} says nothing")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError(f"{BINARY} ended with {self._process.wait(20)}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def visit(self, page: Path, width: int, scheme: str, medium: str = "screen") -> None:
        """Loads the page, `width` pixels wide, in the light or dark colour scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=medium, features=features)
        self.events.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def hard_to_read(self, page: Path, width: int, scheme: str) -> list[Any]:
        """Returns the faults of a page with all its details open.

        Faults are a page wider than the screen, a grid with a hole at its end, small text, too little contrast, network
        requests, and errors of the browser.
        """
        self.visit(page, width, scheme)
        self.value(_OPEN_ALL)
        widths = self.value("[innerWidth, document.documentElement.scrollWidth]")
        asked = [one["request"]["url"] for one in self.told("Network.requestWillBeSent")]
        return [
            *([f"{widths} pixels wide, not {width}"] if widths != [width, width] else []),
            *self.value(_WIDER),
            *(f"hole: {grid}" for grid in self.value(HOLES)),
            *(f"small: {text}" for text in self.value(SMALL)),
            *self.value(CONTRAST),
            *(url for url in asked if not url.startswith("data:") and url != page.as_uri()),
            *self.told("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"),
        ]

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page. Raises RuntimeError when it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """Writes a screenshot of the whole page as PNG."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """Returns the parameters of the events of these names since the last visit."""
        return [event["params"] for event in self.events if event["method"] in methods]
