"""The report page in a real browser: it fits the screen, is readable, and makes no requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.report.html.host_page import page
from tests.report import run_documents as made
from tests.report.chromium import CONTRAST, HOLES, Chromium

SWITCHED = made.switched()
PAGES = {
    "broken": [made.a_document(code=2, servbadge=made.broken())],
    "sixteen": [made.a_document("accept", **{"dgx-2": {**SWITCHED, "measured": made.stressed(SWITCHED, without=2)}})],
    "lost": [made.a_document(code=2, **{"dgx-2": made.all_lost()})],
    "long": [
        made.a_document("accept", code=2, **{made.LONG_NAME: made.long_names(), "h" * 60: made.healthy(measured=[])})
    ],
    "fleet": [
        made.a_document(code=3, a=made.healthy(), b=made.broken(), c=made.switched(), d=made.unreachable()),
        made.a_document("provision", **{"a-host-with-quite-a-long-name.rack-7.example": made.healthy()}),
    ],
}


EVERY_RUN = ("broken", "long", "fleet")
"""Pages that every run looks at; the others are looked at nightly."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in EVERY_RUN else pytest.mark.nightly) for name in PAGES],
)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(page(PAGES[request.param]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        (1600, "dark"),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in [(360, "dark"), (1280, "light"), (1280, "dark"), (1600, "light")]
        ),
    ],
)
def test_it_can_be_read(chromium: Chromium, file: Path, width: int, scheme: str) -> None:
    assert chromium.hard_to_read(file, width, scheme) == []
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(244, 245, 247)") == (scheme == "light")


def test_no_position_of_a_gpu_is_broken(chromium: Chromium, file: Path) -> None:
    chromium.visit(file, 360, "light")
    lines = chromium.value("[...document.querySelectorAll('.word')].map(one => one.getClientRects().length)")
    assert len(lines) > 4
    assert max(lines) == 1


def test_the_first_screen_has_the_drawing_and_the_first_problem(chromium: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    path.write_text(page([made.a_document(code=2, servbadge=made.one_lost())]), encoding="utf-8")
    for width in (1280, 1600):
        chromium.visit(path, width, "light")
        bottoms = "['.topology', '.finding'].map(name => document.querySelector(name).getBoundingClientRect().bottom)"
        assert max(chromium.value(bottoms)) < 600


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
    hidden = (
        "[...document.querySelectorAll('details > table, details > div')].filter(one => "
        "!one.checkVisibility({contentVisibilityAuto: true}))"
    )
    assert chromium.value(f"{hidden}.length") == 0
    assert chromium.value(CONTRAST) == []
    assert chromium.value(HOLES) == []
    printed = chromium.ask("Page.printToPDF")["data"]
    assert len(printed) > 20_000


def test_what_is_hard_to_read_is_seen(chromium: Chromium, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body style='background: white'><p class='wide' style='width: 2000px'>x</p><p class='pale' style='color: "
        "#eee'>y</p>"
        "<p style='font-size: 5px'>s</p><div class='cards'><p style='width: "
        "9px'>c</p></div><img src='gone.png'><script>console.log('z')</script>"
    )
    found = chromium.hard_to_read(bad, 1200, "light")
    assert len(found) >= 5
    for words in (
        "small: 5.0 s",
        "hole: cards of 1",
        "pixels wide, not 1200",
        "P.wide",
        "P.pale: y",
        "gone.png",
        "'value': 'z'",
    ):
        assert words in str(found), words
