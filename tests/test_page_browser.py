"""The report page in a real browser: it fits, it can be read, it asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.report.page import page
from tests import report_documents as made
from tests.chromium import Chromium

PAGES = {
    "broken": [made.a_document(code=2, servbadge=made.broken())],
    "sixteen": [made.a_document("accept", **{"dgx-2": made.switched()})],
    "fleet": [
        made.a_document(code=3, a=made.healthy(), b=made.broken(), c=made.switched(), d=made.unreachable()),
        made.a_document("provision", **{"a-host-with-quite-a-long-name.rack-7.example": made.healthy()}),
    ],
}
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
    if (element.ownerSVGElement && element.closest('.box')) return getComputedStyle(element.closest('.box').querySelector('rect')).fill;
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
    const [a, b] = [light(element.ownerSVGElement ? style.fill : style.color), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(1)} ${element.tagName}.${element.getAttribute('class')}: ${text.slice(0, 40)}`);
  }
  return poor;
})()
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
WIDER = """
[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1
  && !one.closest('.scroll')).map(one => one.tagName + '.' + one.className).slice(0, 5)
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture(scope="module", params=PAGES)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(page(PAGES[request.param]), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_can_be_read(chromium: Chromium, file: Path, width: int, scheme: str) -> None:
    chromium.visit(file, width, scheme)
    chromium.value(OPEN_ALL)
    assert chromium.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert chromium.value(WIDER) == []
    assert chromium.value(CONTRAST) == []
    requests = [one["request"]["url"] for one in chromium.told("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    assert chromium.told("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(244, 245, 247)") == (scheme == "light")


def test_tables_and_pictures_have_names(chromium: Chromium, file: Path) -> None:
    chromium.visit(file, 1200, "light")
    assert chromium.value("document.querySelectorAll('table:not(:has(th[scope]))').length") == 0
    assert chromium.value("[...document.querySelectorAll('th')].filter(one => !one.scope).length") == 0
    assert chromium.value("document.querySelectorAll('svg:not([aria-label]):not([aria-labelledby])').length") == 0
    assert chromium.value("document.querySelectorAll('[role=region]:not([aria-label])').length") == 0
    assert chromium.value("document.title").endswith("rigwright")


def test_paper_has_all_of_it_in_black_on_white(chromium: Chromium, file: Path) -> None:
    chromium.visit(file, 720, "dark", "print")
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    hidden = "[...document.querySelectorAll('details > table, details > div')].filter(one => !one.checkVisibility({contentVisibilityAuto: true}))"
    assert chromium.value(f"{hidden}.length") == 0
    assert chromium.value(CONTRAST) == []
    printed = chromium.ask("Page.printToPDF")["data"]
    assert len(printed) > 20_000
