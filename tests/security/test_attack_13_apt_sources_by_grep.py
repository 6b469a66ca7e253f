"""Attack 13: lines that only contain the URL of NVIDIA's repository were taken for that source. apt itself says what
counts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.facts.apt import sources as apt_sources
from tests.driver.apt_machine import run

URL = "https://mirror.example/cuda"


def _stanza(more: str = "", url: str = URL) -> str:
    return f"Types: deb\nURIs: {url}\nSuites: /\n{more}"


FILES = [
    ("usual.list", f"deb {URL} /\n", True),
    ("slash.list", f"deb {URL}/ /\n", True),
    ("stanza.sources", _stanza("Enabled: yes\n"), True),
    ("second.sources", f"{_stanza(url='https://other.example')}\n# a comment\n\n{_stanza()}", True),
    ("comment.list", f"# deb {URL} /\n", False),
    ("trailing.list", f"deb https://other.example / # {URL}\n", False),
    ("only-sources.list", f"deb-src {URL} /\n", False),
    ("longer.list", f"deb {URL}-more /\n", False),
    ("deeper.list", f"deb {URL}/more /\n", False),
    ("off.sources", _stanza("Enabled: no\n"), False),
    ("comment.sources", f"# {_stanza()}".replace("\n", "\n# "), False),
    ("saved.list.save", f"deb {URL} /\n", False),
    ("no extension", f"deb {URL} /\n", False),
    ("blank in.list", f"deb {URL} /\n", False),
]


@pytest.mark.parametrize(("name", "text", "counts"), FILES, ids=[name for name, _, _ in FILES])
def test_a_source_counts_when_apt_reads_it(name: str, text: str, counts: bool, tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / name).write_text(text)
    argv = [word.replace("/etc/apt", str(tmp_path)) for word in apt_sources.sources.command.argv]
    done = subprocess.run(argv, capture_output=True, check=True)
    found = apt_sources.sources.parse(Result(done.returncode, done.stdout, done.stderr))
    assert any(source.is_of(URL) for source in found) is counts
    own = (f"Dir::Etc={tmp_path}", f"Dir::State::lists={tmp_path}/lists")
    apts = run("apt-get", *(word for option in own for word in ("-o", option)), "--print-uris", "update")
    assert (f"'{URL}/Packages." in apts) is counts, apts


def test_unsigned_packages_are_known_as_such(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(f"deb [arch=amd64 trusted=yes] {URL} /\n")
    argv = [word.replace("/etc/apt", str(tmp_path)) for word in apt_sources.sources.command.argv]
    done = subprocess.run(argv, capture_output=True, check=True)
    (found,) = apt_sources.sources.parse(Result(done.returncode, done.stdout, done.stderr))
    assert found.trusted
