"""The table of releases: its form, what an update changes in it, and its age."""

from __future__ import annotations

import datetime

import pytest
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import loader, releases
from rigwright.catalogue.releases import PublishedRelease, ReleaseTable, compared, merged, parsed, written
from rigwright.core.files import shipped_files
from rigwright.core.numbers import numbers

OLD, NEW = datetime.date(2026, 8, 1), datetime.date(2026, 11, 22)
TEXT = (loader.FOLDER / releases.FILE).read_text(encoding="utf-8")


def _driver(
    release: str, source: str = "", date: datetime.date | None = OLD, kind: releases.Kind = ""
) -> PublishedRelease:
    return PublishedRelease("driver", release, date, kind, "", source or f"redistrib_{release}.json")


def _cuda(release: str, driver: str = "") -> PublishedRelease:
    return PublishedRelease("cuda", release, OLD, "", driver, f"redistrib_{release}.json")


def test_the_table() -> None:
    table = catalogue.release_table()
    assert written(table) == TEXT
    drivers = [entry for entry in table.releases if entry.product == "driver"]
    assert [entry.release for entry in drivers] == sorted((entry.release for entry in drivers), key=numbers)
    assert all(entry.date is None or entry.date <= table.read for entry in table.releases)
    for entry in drivers:
        assert entry.release in catalogue.branches()[entry.branch].versions


def test_cuda_releases() -> None:
    toolkits = catalogue.published_toolkits()
    assert toolkits["13.1"]["13.1.1"].driver == "590.48.01"
    assert toolkits["13.2"]["13.2.1"].driver == "595.58.03"
    assert str(toolkits["13.4"]["13.4.2"]) == "13.4.2 of 2026-09-16"
    assert list(toolkits["13.4"]) == ["13.4.1", "13.4.2"]


TABLE = ReleaseTable(
    OLD,
    releases.ordered(
        [
            _driver("580.1.1"),
            _driver("580.1.2"),
            _driver("580.1.3", "releases.json", kind="long-term support"),
            _driver("535.1.1", "endoflife.date"),
            _cuda("13.1.1", "590.1.1"),
        ]
    ),
)


def test_an_update_keeps_what_it_is_told_to() -> None:
    new = merged(TABLE, [_driver("580.1.2", date=NEW), _driver("580.1.4")], NEW)
    update = compared(TABLE, new)
    assert new.read == NEW
    assert [entry.release for entry in new.releases] == ["535.1.1", "580.1.2", "580.1.3", "580.1.4", "13.1.1"]
    assert [entry.release for entry in update.new] == ["580.1.4"]
    assert [entry.release for entry in update.gone] == ["580.1.1"]
    kind = "long-term support"
    assert [after.date for _, after in update.changed] == [NEW]
    assert {entry.release: entry.kind for entry in new.releases}["580.1.4"] == kind
    new = merged(TABLE, [_driver("580.1.4")], NEW, keep=True)
    assert {entry.release for entry in TABLE.releases} < {entry.release for entry in new.releases}
    assert compared(TABLE, new).gone == ()
    new = merged(TABLE, [_cuda("13.1.1", "590.1.1"), _cuda("13.6.0")], NEW)
    assert new.read == OLD
    assert [entry.release for entry in compared(TABLE, new).new] == ["13.6.0"]
    assert compared(TABLE, new).gone == ()
    new = merged(TABLE, [_driver("580.1.4"), _driver("625.1.1", "releases.json", kind="new feature")], NEW)
    again = merged(new, [_driver("580.1.4"), _driver("625.1.1", "releases.json", kind="new feature")], NEW)
    assert again == new
    assert parsed(written(new), "table") == new


def test_a_redistrib_file_counts_more_than_releases_json() -> None:
    both = [_driver("580.1.2"), _driver("580.1.2", "releases.json", NEW), _driver("580.1.3", "releases.json", NEW)]
    for order in (both, both[::-1]):
        by_release = {entry.release: entry for entry in merged(TABLE, order, NEW).releases}
        assert (by_release["580.1.2"].date, by_release["580.1.2"].source) == (OLD, "redistrib_580.1.2.json")
        assert by_release["580.1.3"].date == NEW
    alone = {entry.release: entry for entry in merged(TABLE, both[1:], NEW).releases}
    assert alone["580.1.2"].source == "redistrib_580.1.2.json"
    for source in ("releases.json", "redistrib_535.1.1.json"):
        replaced = merged(TABLE, [_driver("535.1.1", source, NEW)], NEW)
        assert {entry.release: entry.source for entry in replaced.releases}["535.1.1"] == source


@pytest.mark.parametrize(("days", "warned"), [(-3, False), (0, False), (90, False), (91, True), (400, True)])
def test_the_age(days: int, warned: bool) -> None:
    read = catalogue.release_table().read
    warning = catalogue.stale(read + datetime.timedelta(days))
    assert bool(warning) == warned
    if warned:
        assert f"the catalogue is of {read}, {days} days old" in warning
        assert "git pull, or scripts/catalogue-update https://" in warning
        assert "\n" not in warning


def test_what_an_installed_copy_says(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_files, "CHECKOUT", tmp_path)
    warning = catalogue.stale(catalogue.release_table().read + datetime.timedelta(120))
    assert warning.endswith("pip install --upgrade rigwright")


def test_a_branch_that_only_the_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ReleaseTable(NEW, (_driver("460.1.1"), _driver("950.1.1", kind="production"), _driver("951.1.1")))
    for cached in (catalogue.branches, catalogue.published_drivers):
        cached.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(releases, "release_table", lambda: table)
        branches = catalogue.branches()
    for cached in (catalogue.branches, catalogue.published_drivers):
        cached.cache_clear()
    assert "460" not in branches
    assert [(name, branches[name].kind, branches[name].versions) for name in ("950", "951")] == [
        ("950", "production", ("950.1.1",)),
        ("951", "unknown", ("951.1.1",)),
    ]
    assert branches["950"] == replace(branches["950"], eol=None, cuda=None, name="950")
