"""Where release files come from: folders, files, and URLs of this machine."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rigwright.catalogue import feed_files
from rigwright.core.errors import InputError, RigwrightError, UsageError
from tests.catalogue.feed_samples import folder

NAMES = [
    "redistrib_13.1.1.json",
    "redistrib_13.6.0.json",
    "redistrib_580.178.04.json",
    "redistrib_625.10.02.json",
    "releases.json",
]


def _names(source: str, *skip: str) -> list[str]:
    return [file.name for file in feed_files.feed_files(source, skip)]


def test_a_folder_without_what_is_no_regular_file(tmp_path: Path) -> None:
    feed = folder(tmp_path / "feed")
    assert _names(str(feed)) == NAMES
    assert _names(feed.as_uri()) == NAMES
    assert _names(str(feed / "releases.json")) == ["releases.json"]
    assert _names(str(feed), "redistrib_1*", "releases.json") == NAMES[2:4]
    feed = folder(tmp_path / "feed")
    os.mkfifo(feed / "redistrib_600.1.1.json")
    (feed / "redistrib_600.1.2.json").mkdir()
    assert _names(str(feed)) == NAMES


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "no such folder"),
        ("empty", "0 files redistrib_VERSION.json"),
        ("feed/LICENSE.txt", "is no file of NVIDIA's by its name"),
        ("ftp://example.org/", "is no source"),
        ("http://example.org/redist/", "is no source"),
        ("https:///redist/", "is no source"),
        ("http://[::1/", "is no source"),
        ("file://elsewhere/feed", "is no source"),
    ],
)
def test_no_source(tmp_path: Path, name: str, words: str) -> None:
    folder(tmp_path / "feed")
    (tmp_path / "empty").mkdir()
    source = name if "://" in name else str(tmp_path / name)
    with pytest.raises((InputError, UsageError)) as caught:
        _names(source)
    assert caught.value.where == source
    assert words in caught.value.found


def test_a_file_that_is_too_long_or_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = folder(tmp_path / "feed")
    (feed / "redistrib_13.1.1.json").write_bytes(b'{\n"release_label": "\xff"}')
    with pytest.raises(InputError) as caught:
        _names(str(feed))
    assert caught.value.where == f"{feed / 'redistrib_13.1.1.json'}:2"
    monkeypatch.setattr(feed_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(InputError, match="longer than"):
        _names(str(feed))
    monkeypatch.setattr(feed_files, "MAX_FILES", 4)
    with pytest.raises(InputError, match="5 files"):
        _names(str(feed))


class _Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder. Some paths answer in bad ways; `asked` has every path."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/elsewhere/"):
            self._answer(302, {"Location": f"http://localhost:{self.server.server_address[1]}/feed/"})
        elif self.path.startswith("/moved/"):
            self._answer(301, {"Location": self.path.replace("/moved/", "/feed/")})
        elif self.path == "/short/":
            self._answer(200, {"Content-Length": "1000"}, b"<a href=")
        elif self.path == "/page/":
            self._answer(200, {}, self.page)
        else:
            super().do_GET()

    page = (
        b'<html><a href="../">up</a><a href="redistrib_580.178.04.json">one</a><A '
        b"HREF='/page/redistrib_13.1.1.json'>two</A>"
        b'<a href="redistrib_580.178.04.json.asc">signature</a><a href="redistrib_v2_13.1.1.json">other</a>'
        b'<a href="https://example.org/page/redistrib_595.1.1.json">elsewhere</a><a '
        b'href="../feed/redistrib_13.6.0.json">up</a>'
        b'<a href="//[broken/redistrib_595.1.1.json">broken</a><a '
        b'href="sub/redistrib_600.1.1.json">deeper</a><a>none</a>'
    )

    def _answer(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the URL of a web server on the loopback address, and the list of paths that were asked for."""
    folder(tmp_path / "feed")
    page = folder(tmp_path / "page")
    assert page.is_dir()
    handler = type("Handler", (_Server,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler.asked
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_page_and_only_files_below_it(site: tuple[str, list[str]]) -> None:
    url, asked = site
    for source in (f"{url}/feed/", f"{url}/feed", f"{url}/moved/"):
        assert _names(source) == NAMES
    assert _names(f"{url}/feed/releases.json") == ["releases.json"]
    asked.clear()
    assert _names(f"{url}/feed/", "redistrib_*") == ["releases.json"]
    assert asked == ["/feed/", "/feed/releases.json"]
    asked.clear()
    assert _names(f"{url}/page/") == ["redistrib_13.1.1.json", "redistrib_580.178.04.json"]
    assert asked == ["/page/", "/page/redistrib_13.1.1.json", "/page/redistrib_580.178.04.json"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/elsewhere/", "redirects to http://localhost"),
        ("/none/", "404"),
        ("/none/redistrib_580.178.04.json", "404"),
        ("/short/", "breaks off 992 bytes before its end"),
    ],
)
def test_a_bad_answer(site: tuple[str, list[str]], path: str, words: str) -> None:
    url, _ = site
    with pytest.raises(RigwrightError) as caught:
        _names(url + path)
    assert caught.value.where == url + path
    assert words in caught.value.found


def test_limits_of_a_download(site: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = site
    with monkeypatch.context() as patch:
        patch.setattr(feed_files, "MAX_DOWNLOAD_S", -1)
        with pytest.raises(InputError, match="still downloading"):
            _names(f"{url}/feed/")
    monkeypatch.setattr(feed_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(InputError, match="longer than"):
        _names(f"{url}/feed/releases.json")


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(InputError, match="cannot be downloaded"):
        _names("http://127.0.0.1:9/feed/")
