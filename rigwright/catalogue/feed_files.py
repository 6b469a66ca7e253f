"""Finds NVIDIA's release files (redistrib_VERSION.json, releases.json) in a folder or behind a URL."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urljoin, urlsplit

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.errors import InputError, UsageError

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 1000
TIMEOUT_S = 30
MAX_DOWNLOAD_S = 600
_NAME = lazy_re.compile(r"redistrib_[0-9]{1,4}(\.[0-9]{1,4})+\.json|releases\.json")
_EXAMPLE = "scripts/catalogue-update ~/nvidia-redist"


class FeedFile(Struct, frozen=True):
    """A file: its name, the path or URL for messages, and its text."""

    name: str
    shown: str
    text: str


def feed_files(source: str, skip: Collection[str] = ()) -> tuple[FeedFile, ...]:
    """The files of a folder, of one file, or of a URL: a page that links them, or one file.

    A URL is https://, file://, or http:// of this machine. Other files and links are ignored, and names that match a
    pattern of `skip` (redistrib_4*.json). Raises UsageError for another source, InputError for one that cannot be read,
    is too large, or has no such file.
    """
    local = re.match(r"file://(localhost)?(?=/)", source)
    if local:
        return _local(Path(unquote(source[local.end() :])), source, skip)
    if "://" not in source:
        return _local(Path(source).expanduser(), source, skip)
    if not _allowed(source):
        raise UsageError(
            source, "is no source", "a folder, a file, https://..., file:///..., or http://127.0.0.1/...", _EXAMPLE
        )
    return tuple(_remote(source, skip))


def _wanted(name: str, skip: Collection[str]) -> bool:
    return bool(_NAME.fullmatch(name)) and not any(fnmatchcase(name, pattern) for pattern in skip)


def _local(path: Path, source: str, skip: Collection[str]) -> tuple[FeedFile, ...]:
    if path.is_dir():
        paths = sorted(entry for entry in path.iterdir() if _wanted(entry.name, skip) and entry.is_file())
    elif path.is_file() and _NAME.fullmatch(path.name):
        paths = [path]
    else:
        there = "is no file of NVIDIA's by its name" if path.is_file() else "no such folder"
        raise InputError(source, there, "a folder with redistrib_VERSION.json files or releases.json", _EXAMPLE)
    if not 0 < len(paths) <= MAX_FILES:
        raise _too_many(source, len(paths))
    files = []
    for each in paths:
        try:
            with each.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise InputError(str(each), f"cannot be read: {error.strerror}", "a readable file") from None
        files.append(FeedFile(each.name, str(each), _text(content, str(each))))
    return tuple(files)


def _too_many(source: str, number: int) -> InputError:
    problem, fix = (
        f"{number} files redistrib_VERSION.json or releases.json",
        "name the folder or the page that has them",
    )
    return InputError(source, problem, f"1 to {MAX_FILES} files", fix)


def _text(content: bytes, shown: str) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise InputError(shown, f"longer than {MAX_FILE_BYTES >> 20} MiB", "a file of NVIDIA's, at most 1 MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown}:{line}", "not UTF-8", "a whole file", "download it again") from None


def _allowed(url: str) -> bool:
    """Whether a URL may be read: https, or http of this machine."""
    try:
        parts = urlsplit(url)
        local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the host that the user named."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _allowed(newurl) or urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            raise InputError(
                req.full_url, f"redirects to {newurl}", "the host that was named", "name that URL if it is right"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for key, value in attrs if key == "href" and value]


def _remote(url: str, skip: Collection[str]) -> Iterator[FeedFile]:
    opener = urllib.request.build_opener(_SameHost)
    end = time.monotonic() + MAX_DOWNLOAD_S
    name = urlsplit(url).path.rsplit("/", 1)[-1]
    if _NAME.fullmatch(name):
        yield FeedFile(name, url, _download(opener, url, end))
        return
    folder = url if url.endswith("/") else f"{url}/"
    page = _Links()
    page.feed(_download(opener, folder, end))
    linked = set()
    for link in page.links:
        with contextlib.suppress(ValueError):  # not a URL
            target = urljoin(folder, link)
            if target.startswith(folder) and _NAME.fullmatch(target.removeprefix(folder)):
                linked.add(target.removeprefix(folder))
    names = sorted(name for name in linked if _wanted(name, skip))
    if not 0 < len(names) <= MAX_FILES:
        raise _too_many(url, len(names))
    for name in names:
        yield FeedFile(name, folder + name, _download(opener, folder + name, end))


def _download(opener: urllib.request.OpenerDirector, url: str, end: float) -> str:
    content = b""
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            while len(content) <= MAX_FILE_BYTES and (part := answer.read1(1 << 16)):
                content += part
                if time.monotonic() > end:
                    raise InputError(url, f"still downloading after {MAX_DOWNLOAD_S} s", "a faster source", _EXAMPLE)
            missing = answer.length if len(content) <= MAX_FILE_BYTES else 0
    except (OSError, HTTPException, ValueError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        raise InputError(
            url, f"cannot be downloaded: {reason}", "an answer of that server", "open the URL in a browser"
        ) from None
    if missing:
        raise InputError(url, f"breaks off {missing} bytes before its end", "a whole file", "run it again")
    return _text(content, url)
