"""The fleet page in a real browser: it fits small and large screens, is readable, filters hosts, makes no requests."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rigwright.features.fleet_report import page as fleet_page
from tests.paths import ROOT
from tests.report import fleet_documents as made
from tests.report.chromium import CONTRAST, Chromium

LONG = "a-host-with-quite-a-long-name.rack-7.example"
UNNAMED = """
[...document.querySelectorAll('a, input, [role=img], svg, article, section, table, fieldset')].filter(one => !(
  one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.textContent.trim()
  || one.closest('label')?.textContent.trim())).map(one => one.outerHTML.slice(0, 80))
"""
CHOSEN = "[...document.querySelectorAll('.cell .of')].filter(one => one.checkVisibility()).map(one => one.className.split(' ')[1])"


def _worst() -> dict[str, Any]:
    """Returns six machines with long names, and with host texts that contain markup or would widen a page."""
    fleet = made.a_fleet(6, 3)
    host = made.hostile(fleet["hosts"].pop("node-03"), "\x1b[31m<b onclick=alert(1)>" + "wide" * 60)
    return {**fleet, "hosts": {**fleet["hosts"], LONG: made.a_node(2), "poisoned": host}}


PAGES = {"two": made.a_fleet(2, 0), "worst": _worst(), "forty": made.a_fleet(40, 3)}
PAGES |= {"twelve": made.twelve(), "one": made.a_fleet(1, 0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with all of PAGES, as NAME.html."""
    folder = tmp_path_factory.mktemp("fleet")
    for name, document in PAGES.items():
        (folder / f"{name}.html").write_text(fleet_page.page(document), encoding="utf-8")
    return folder


EVERY_RUN = ("worst", "forty")
"""Pages that every run looks at; the others are looked at nightly."""


@pytest.fixture(params=[pytest.param(name, marks=[] if name in EVERY_RUN else pytest.mark.nightly) for name in PAGES])
def file(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Returns each page's file in turn."""
    return folder / f"{request.param}.html"


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        (1600, "dark"),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in [(400, "dark"), (1280, "light"), (1920, "light")]),
    ],
)
def test_it_can_be_read(chromium: Chromium, file: Path, width: int, scheme: str) -> None:
    assert chromium.hard_to_read(file, width, scheme) == []


def test_everything_has_a_name(chromium: Chromium, file: Path) -> None:
    chromium.visit(file, 1440, "light")
    assert chromium.value(UNNAMED) == []
    assert chromium.value("[...document.querySelectorAll('th')].filter(one => !one.scope).length") == 0
    levels = chromium.value("[...document.querySelectorAll('h1, h2, h3, h4')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


@pytest.mark.nightly
def test_what_the_colours_mean_can_be_chosen(chromium: Chromium, folder: Path) -> None:
    chromium.visit(folder / "forty.html", 1440, "dark")
    for name in ("temperature", "power", "work", "memory"):
        chromium.value(f"document.getElementById('show-{name}').click()")
        assert set(chromium.value(CHOSEN)) == {name}
        assert chromium.value(CONTRAST) == []


def test_hotter_is_warmer_in_colour(chromium: Chromium, tmp_path: Path) -> None:
    host = made.a_node(3)
    for gpu, celsius in zip(host["machine"]["gpus"], (30, 50, 70, 87), strict=True):
        gpu["temperature_c"] = celsius
    page = tmp_path / "heat.html"
    page.write_text(fleet_page.page(made.a_document(a=host)), encoding="utf-8")
    chromium.visit(page, 1440, "light")
    red = """(() => { const c = document.createElement('canvas').getContext('2d');
      return [...document.querySelectorAll('.cell .temperature')].map(one => { c.fillStyle = getComputedStyle(one).backgroundColor;
        c.fillRect(0, 0, 1, 1); const p = c.getImageData(0, 0, 1, 1).data; return p[0] - p[2]; }); })()"""
    found = chromium.value(red)
    assert len(found) == 4
    assert found == sorted(set(found))


def test_a_tile_leads_to_its_part(chromium: Chromium, folder: Path) -> None:
    """In a large fleet, all tiles, the faults and the map fit on one screen."""
    chromium.visit(folder / "forty.html", 1920, "light")
    for part in ("attention", "changes", "endings", "machines"):
        assert chromium.value(f"document.querySelector('.tile a[href=\"#{part}\"]') !== null"), part
        assert chromium.value(f"document.getElementById('{part}') !== null"), part
    assert chromium.value("document.getElementById('map').getBoundingClientRect().bottom") < 1080


def test_the_cards_of_machines_leave_little_room_between_them(chromium: Chromium, folder: Path) -> None:
    area = "(one => { const r = one.getBoundingClientRect(); return r.width * r.height; })"
    for width in (1280, 1600):
        for name in ("one", "twelve"):
            chromium.visit(folder / f"{name}.html", width, "light")
            all_cards = "[...document.querySelectorAll('.machine-card')]"
            cards = chromium.value(f"{all_cards}.map({area}).reduce((a, b) => a + b)")
            assert cards / chromium.value(f"{area}(document.querySelector('.machines'))") > 0.8


def test_machines_with_long_names_can_be_told_apart(chromium: Chromium, folder: Path) -> None:
    """The end of a name is shown in the map, where there is no room for all of it."""
    chromium.visit(folder / "twelve.html", 360, "light")
    ends = chromium.value(
        "[...document.querySelectorAll('.rack .tail')].filter(one => one.scrollWidth <= one.clientWidth + 1).map(one => one.textContent)"
    )
    assert len(set(ends)) == 10


@pytest.mark.nightly
def test_paper_is_black_on_white(chromium: Chromium, folder: Path) -> None:
    chromium.visit(folder / "worst.html", 720, "dark", "print")
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert chromium.value(CONTRAST) == []
    assert len(chromium.ask("Page.printToPDF")["data"]) > 20_000


def test_the_picture_in_the_documentation_is_as_large_as_the_script_makes_it(tmp_path: Path) -> None:
    """A copy of the checkout's script, so that the picture of the checkout stays."""
    for name in ("scripts", "docs/images"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "pictures", tmp_path / "scripts")
    run = [sys.executable, str(tmp_path / "scripts" / "pictures"), "--fleet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "written: docs/images/fleet.webp\n", "")
    made, shipped = ((folder / "docs" / "images" / "fleet.webp").read_bytes() for folder in (tmp_path, ROOT))
    assert made[:4] == b"RIFF"
    assert _size(made) == _size(shipped)


def _size(picture: bytes) -> bytes:
    """The width and height of a WebP file with an extended header."""
    assert picture[8:16] == b"WEBPVP8X"
    return picture[24:30]
