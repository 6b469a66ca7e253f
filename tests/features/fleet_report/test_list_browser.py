"""The page of a large fleet in a real browser: filters, search and details work without a server, by keyboard too, and
it can be read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rigwright.features.fleet_report import page as fleet_page
from tests.features.fleet_report.test_list import large
from tests.report.chromium import CONTRAST, Chromium

SHOWN = "[...document.querySelectorAll('.row')].filter(one => one.checkVisibility()).length"
COUNT = "document.getElementById('count').textContent"
FOCUS = "document.activeElement.id"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the page of 120 machines."""
    file = tmp_path_factory.mktemp("fleet") / "large.html"
    file.write_text(fleet_page.page(large()), encoding="utf-8")
    return file


@pytest.fixture
def page(chromium: Chromium, file: Path) -> Chromium:
    """Returns the browser that shows the page as at a first visit."""
    chromium.visit(file, 1280, "light")
    chromium.value("sessionStorage.clear()")
    chromium.visit(file, 1280, "light")
    return chromium


def key(browser: Chromium, name: str, text: str = "") -> None:
    """Presses a key."""
    for kind in ("keyDown", "keyUp"):
        more = {"text": text} if text and kind == "keyDown" else {}
        browser.ask("Input.dispatchKeyEvent", type=kind, key=name, **more)


def until(browser: Chromium, condition: str) -> Any:
    """Waits until a condition in the page is true. A page that is being loaded may end the evaluation."""
    deadline = time.monotonic() + 20
    while True:
        try:
            if value := browser.value(condition):
                return value
        except RuntimeError as error:
            loading = ("navigated or closed", "context was destroyed", "find context")
            if not any(words in str(error) for words in loading):
                raise
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_it_can_be_read(chromium: Chromium, file: Path, width: int, scheme: str) -> None:
    """With the details of one machine of each state; all others have the same form."""
    chromium.visit(file, width, scheme)
    chromium.value(
        """for (const verdict of ['fail', 'warn', 'unknown', 'pass']) document.querySelector(`.row[data-verdict=${verdict}]`).open = true"""
    )
    until(chromium, "document.querySelectorAll('.row article').length === 4")
    assert chromium.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert chromium.value(CONTRAST) == []
    asked = [one["request"]["url"] for one in chromium.told("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith(("data:", file.as_uri()))] == []
    assert chromium.told("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


def test_the_search_by_keyboard(page: Chromium) -> None:
    key(page, "/", "/")
    assert page.value(FOCUS) == "find"
    page.ask("Input.insertText", text="node-10 v100")
    assert 0 < page.value(SHOWN) < 11
    assert page.value(COUNT) == f"{page.value(SHOWN)} of 120 machines"
    key(page, "Escape")
    assert page.value(COUNT) == "120 machines"
    assert page.value(SHOWN) == 120
    page.ask("Input.insertText", text="no machine has this")
    assert page.value("document.getElementById('none').checkVisibility()") is True
    page.value("document.getElementById('clear').click()")
    assert page.value(SHOWN) == 120


def test_filters_together_with_the_search(page: Chromium) -> None:
    choose = "(() => { const one = [...document.querySelectorAll('select')].find(one => [...one.options].some(o => o.text.startsWith('%s '))); one.value = [...one.options].find(o => o.text.startsWith('%s ')).value; one.dispatchEvent(new Event('change')); })()"
    page.value(choose % ("unreachable", "unreachable"))
    assert page.value(SHOWN) == 24
    page.ask("Runtime.evaluate", expression="document.getElementById('find').focus()")
    page.ask("Input.insertText", text="node-005")
    assert page.value(SHOWN) == 1
    page.value("window.before = true; void setTimeout(() => location.reload())")  # as --reload does
    until(page, f"!window.before && document.readyState === 'complete' && {COUNT} === '1 of 120 machines'")


def test_the_machines_of_a_cause(page: Chromium) -> None:
    page.value(
        "[...document.querySelectorAll('button[data-cause]')].find(one => one.dataset.title.includes('C under load')).click()"
    )
    assert page.value(SHOWN) == 31
    assert page.value(FOCUS) == "count"
    assert "C under load" in page.value("document.getElementById('cause').textContent")


def test_the_details_of_a_machine_are_unpacked_when_they_are_opened(page: Chromium) -> None:
    assert page.value("document.querySelectorAll('article').length") == 0
    page.value("document.querySelectorAll('.row')[70].firstElementChild.focus()")
    key(page, "Enter", "\r")
    name = until(page, "document.querySelector('.row[open] article h3')?.textContent")
    assert name == page.value("document.querySelectorAll('.row')[70].querySelector('b').textContent")
    assert page.value("document.querySelectorAll('article').length") == 1


def test_a_link_opens_the_row_also_if_it_is_filtered_out(page: Chromium) -> None:
    page.value(
        "document.getElementById('find').value = 'nothing'; document.getElementById('find').dispatchEvent(new Event('input'))"
    )
    page.value("location.hash = '#' + document.querySelectorAll('.row')[3].id")
    until(
        page,
        "document.querySelectorAll('.row')[3].checkVisibility() && document.querySelectorAll('.row')[3].querySelector('article') !== null",
    )


def test_the_map_has_a_square_for_each_gpu(page: Chromium) -> None:
    assert page.value("document.querySelectorAll('.minis a').length") == 120
    assert page.value("document.querySelectorAll('.minis i').length") == page.value("JSON.parse(document.getElementById('data').textContent).gpus.join(' ').split(' ').filter(Boolean).length")  # fmt: skip
    heat = "[...document.querySelectorAll('.minis i')].map(one => one.style.getPropertyValue('--heat')).join()"
    before = page.value(heat)
    page.value("document.getElementById('show-power').click()")
    assert page.value(heat) != before


def test_without_javascript_the_causes_and_a_list_remain(chromium: Chromium, file: Path) -> None:
    chromium.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.visit(file, 1280, "light")
    finally:
        chromium.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert chromium.value(SHOWN) == 120
    assert chromium.value("document.querySelectorAll('#attention .finding').length") >= 3
    scripted = "[...document.querySelectorAll('.scripted')]"
    assert chromium.value(f"{scripted}.filter(one => one.checkVisibility()).length") == 0
    assert chromium.value(CONTRAST) == []
