"""Where the lab downloads Debian from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.base import debian


@pytest.mark.parametrize(
    ("name", "text", "mirror"),
    [
        ("debian.sources", "Types: deb\nURIs: http://mirror.test/debian\nSuites: trixie trixie-updates\n", "http://mirror.test/debian"),
        ("debian.sources", "URIs: http://a.test\nSuites: nodistro\n\nURIs: http://b.test\nSuites: bookworm\n", "http://b.test"),
        ("d.list", "deb [arch=amd64] https://mirror.test/debian/ trixie main\n", "https://mirror.test/debian/"),
        ("d.list", "# deb http://mirror.test/debian trixie main\n", None),
        ("d.list", "deb http://mirror.test/debian-security trixie-security main\n", None),
        ("d.list", "deb cdrom:[Debian]/ bookworm main\n", None),
    ],
)  # fmt: skip
def test_the_mirror_in_the_machine_s_sources(tmp_path: Path, name: str, text: str, mirror: str | None) -> None:
    """A mirror that the sources name for any release of Debian has bookworm too."""
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / name).write_text(text)
    assert debian.mirror("bookworm", tmp_path) == mirror
