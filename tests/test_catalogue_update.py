"""scripts/catalogue-update: makes the table of releases from NVIDIA's files, all of it or nothing."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rigwright.catalogue import loader, releases
from tests.catalogue.feed_samples import folder, redistrib, releases_json, text
from tests.paths import ROOT

TODAY = datetime.date.today()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A copy of the table, of 100 days ago."""
    path = tmp_path / "releases.csv"
    shutil.copy(loader.FOLDER / releases.FILE, path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[0] = f"# read {TODAY - datetime.timedelta(100)}\n"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _run(table: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, ROOT / "scripts" / "catalogue-update", "--out", table, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_an_update(tmp_path: Path, table: Path) -> None:
    feed = folder(tmp_path / "feed")
    before = releases.parsed(table.read_text(encoding="utf-8"), "before")
    checked = _run(table, "--check", feed)
    assert (checked.returncode, checked.stderr) == (2, "")
    assert "would change; nothing was written" in checked.stdout
    assert releases.parsed(table.read_text(encoding="utf-8"), "after") == before

    done = _run(table, feed)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "read: 5 files, 6 releases",
        "new      driver 625.10.02, 2026-12-01, redistrib_625.10.02.json",
        "new      driver 580.180.01, long-term support, releases.json",
        "new      cuda 13.6.0, 2026-12-01, redistrib_13.6.0.json",
        "changed  driver 580.178.04: date 2026-08-03 -> 2026-08-04, kind none -> long-term support, "
        "source endoflife.date of 2026-08-22 -> redistrib_580.178.04.json",
        "changed  cuda 13.1.1: date none -> 2026-01-12, source nixpkgs copies of redistrib files -> "
        "redistrib_13.1.1.json",
        "changed  driver 580.65.06 to 580.173.02, 11 releases: kind none -> long-term support",
        "to do    branch 625 is not in drivers.yml: add its CUDA version and end of life",
        "to do    CUDA 13.6 is not in cuda.yml: add the driver that it needs",
    ):
        assert line in done.stdout.splitlines()
    assert "gone" not in done.stdout
    after = releases.parsed(table.read_text(encoding="utf-8"), "after")
    assert after.read == TODAY
    assert len(after.releases) == len(before.releases) + 3

    again = _run(table, "--check", feed)
    assert (again.returncode, "is as the files say" in again.stdout) == (0, True)
    (feed / "redistrib_625.10.02.json").unlink()
    (feed / "releases.json").write_text(
        text(releases_json(("580", "580.178.04", ""), kind="production branch")), "utf-8"
    )
    gone = _run(table, feed)
    assert "gone     driver 625.10.02, 2026-12-01, redistrib_625.10.02.json" in gone.stdout
    assert "gone     driver 580.180.01, long-term support, releases.json" in gone.stdout
    assert "to do    branch 580 is production by releases.json, and long-term support in drivers.yml" in gone.stdout
    assert len(releases.parsed(table.read_text(encoding="utf-8"), "after").releases) == len(after.releases) - 2


def test_keep_skip_and_several_sources(tmp_path: Path, table: Path) -> None:
    feed = folder(tmp_path / "feed")
    assert _run(table, feed).returncode == 0
    kept = _run(table, "--keep", "--skip", "redistrib_625*", "--skip", "releases.json", feed)
    assert (kept.returncode, "gone" in kept.stdout) == (0, False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "redistrib_626.1.1.json").write_text(text(redistrib("626.1.1", "2026-12-02", "nvidia-driver")), "utf-8")
    both = _run(table, feed, other.as_uri())
    assert (both.returncode, "read: 6 files, 7 releases" in both.stdout) == (0, True)


@pytest.mark.parametrize("words", [("--check",), ()])
def test_a_damaged_file_changes_nothing(tmp_path: Path, table: Path, words: tuple[str, ...]) -> None:
    feed = folder(tmp_path / "feed")
    path = feed / "redistrib_580.178.04.json"
    path.write_text(path.read_text(encoding="utf-8")[:300], encoding="utf-8")
    before = table.read_bytes()
    done = _run(table, *words, feed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error {path}:10: the JSON breaks off or is damaged")
    assert "--skip" in done.stderr
    assert table.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["feed", "releases.csv"]
    assert _run(table, *words, "--skip", path.name, feed).returncode in (0, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "error none: no such folder"),
        (["http://example.org/"], "error http://example.org/: is no source"),
        (["--date", "yesterday", "FEED"], "error --date: 'yesterday' is no date"),
        (["--date", "2999-01-01", "FEED"], "error --date: 2999-01-01 is in the future"),
        (["--date", "2020-01-01", "FEED"], "error --date: 2020-01-01 is before the table was made"),
        ([], "error scripts/catalogue-update: the following arguments are required"),
        (["--czech", "FEED"], "unrecognized arguments: --czech"),
        (["--skip", "*", "FEED"], "0 files redistrib_VERSION.json or releases.json"),
    ],
)
def test_mistakes(tmp_path: Path, table: Path, words: list[str], message: str) -> None:
    feed = folder(tmp_path / "feed")
    before = table.read_bytes()
    done = _run(table, *(str(feed) if word == "FEED" else word for word in words))
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert table.read_bytes() == before


def test_a_table_that_is_damaged_or_missing(tmp_path: Path, table: Path) -> None:
    feed = folder(tmp_path / "feed")
    missing = _run(tmp_path / "none.csv", feed)
    assert (missing.returncode, "none.csv: cannot be read" in missing.stderr) == (1, True)
    table.write_text("# read 2026-11-22\nproduct\n", encoding="utf-8")
    damaged = _run(table, feed)
    assert (damaged.returncode, "releases.csv:2: the row 'product'" in damaged.stderr) == (1, True)
