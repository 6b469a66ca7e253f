"""Reads NVIDIA's release files: redistrib_VERSION.json of the driver and of CUDA, and releases.json of drivers."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rigwright.catalogue.feed_files import FeedFile
from rigwright.catalogue.releases import Kind, Product, PublishedRelease
from rigwright.core import lazy_re
from rigwright.core.errors import InputError

_PLATFORM = "linux-x86_64"
_PRODUCTS: Mapping[str, Product] = {"cuda": "cuda", "nvidia-driver": "driver", "nvidia_driver": "driver"}
_KINDS: Mapping[str, Kind] = {
    "lts branch": "long-term support",
    "production branch": "production",
    "new feature branch": "new feature",
}
_RELEASE = lazy_re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def releases_of(files: Iterable[FeedFile]) -> tuple[PublishedRelease, ...]:
    """The releases for 64-bit x86 Linux that the files name.

    Raises InputError with file and line for a file that is truncated or of another form, and for two files that
    contradict each other.
    """
    known: dict[tuple[str, str, str], tuple[PublishedRelease, str]] = {}
    for file in files:
        for entry in _of_file(file):
            before, where = known.setdefault((entry.feed, entry.product, entry.release), (entry, file.shown))
            if before != entry:
                problem = f"{entry.product} {entry.release} differs from that in {where}"
                raise InputError(file.shown, problem, "the same release in both", "leave the older of the two out")
    return tuple(entry for entry, _ in known.values())


def _of_file(file: FeedFile) -> Iterator[PublishedRelease]:
    document = _Document(file)
    if file.name == "releases.json":
        yield from _of_releases_json(document)
    elif release := _of_redistrib(document):
        yield release


class _Document:
    """The JSON object of a file, with the lines of its keys for messages. Raises InputError if the file has none."""

    def __init__(self, file: FeedFile) -> None:
        self.file = file
        unknown = "if it is whole, its form is not known to rigwright/catalogue/feeds.py"
        self.fix = f"download it again; {unknown}: leave it out with --skip {file.name}"
        try:
            content = json.loads(file.text)
        except json.JSONDecodeError as error:
            where = f"{file.shown}:{error.lineno}"
            raise InputError(
                where, f"the JSON breaks off or is damaged: {error.msg}", "a whole file", self.fix
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file.shown}:1", f"no JSON of NVIDIA's: {error}", "a whole file", self.fix) from None
        if not isinstance(content, dict):
            raise InputError(f"{file.shown}:1", f"JSON of another form: {_short(content)}", "{...}", self.fix)
        self.content: dict[str, Any] = content

    def error(self, found: str, expected: str, *keys: str) -> InputError:
        """The error at the line of the last of the keys, each of which is looked for after the one before."""
        at = after = 0
        for key in keys:
            match = re.compile(re.escape(json.dumps(key, ensure_ascii=False))).search(self.file.text, after)
            at, after = match.span() if match else (at, after)
        line = self.file.text.count("\n", 0, at) + 1
        return InputError(f"{self.file.shown}:{line}", found, expected, self.fix)

    def release(self, value: Any, *keys: str) -> str:
        """A value that is a version with dots."""
        if not isinstance(value, str) or not _RELEASE.fullmatch(value):
            raise self.error(f"'{keys[-1]}' is {_short(value)}", "a version such as 580.178.04", *keys)
        return value

    def date(self, value: Any, *keys: str) -> datetime.date:
        """A value that is a date."""
        try:
            if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
                return datetime.date.fromisoformat(value)
        except ValueError:
            pass
        raise self.error(f"'{keys[-1]}' is {_short(value)}", "a date, YYYY-MM-DD", *keys)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


def _of_redistrib(document: _Document) -> PublishedRelease | None:
    """The release of a redistrib file; None if it has no driver for 64-bit x86 Linux."""
    top, name = document.content, document.file.name
    label = document.release(top.get("release_label"), "release_label")
    if name != f"redistrib_{label}.json":
        raise document.error(f"'release_label' is {label} in {name}", "the version of the file's name", "release_label")
    date = document.date(top.get("release_date"), "release_date")
    title = top.get("release_product", "nvidia-driver" if int(label.split(".")[0]) >= 100 else "cuda")
    if not isinstance(title, str) or title not in _PRODUCTS:
        raise document.error(f"'release_product' is {_short(title)}", " or ".join(_PRODUCTS), "release_product")
    product = _PRODUCTS[title]
    driver = top.get("nvidia_driver")
    if driver is not None and not isinstance(driver, dict):
        raise document.error(f"'nvidia_driver' is {_short(driver)}", '{"version": ...}', "nvidia_driver")
    version = document.release(driver.get("version"), "nvidia_driver", "version") if driver is not None else ""
    if product == "cuda":
        return PublishedRelease("cuda", label, date, "", version if driver and _PLATFORM in driver else "", name)
    if driver is None:
        raise document.error("a driver's file without 'nvidia_driver'", '"nvidia_driver": {"version": ...}')
    if version != label:
        raise document.error(f"'version' is {version}", f"{label}, as release_label says", "nvidia_driver", "version")
    return PublishedRelease("driver", label, date, "", "", name) if _PLATFORM in driver else None


def _of_releases_json(document: _Document) -> Iterator[PublishedRelease]:
    """The releases of releases.json: an object of branches, each with `type` and the list `driver_info`."""
    for branch, entry in document.content.items():
        if not re.fullmatch(r"[0-9]{3}", branch) or not isinstance(entry, dict):
            raise document.error(f"the key {_short(branch)}", 'a branch, such as "580": {...}', branch)
        title, releases = entry.get("type"), entry.get("driver_info")
        if not isinstance(title, str) or title not in _KINDS:
            raise document.error(f"'type' of {branch} is {_short(title)}", ", ".join(_KINDS), branch, "type")
        if not isinstance(releases, list):
            raise document.error(f"'driver_info' of {branch} is {_short(releases)}", "a list", branch, "driver_info")
        for number, release in enumerate(releases, 1):
            place = (branch, "driver_info", *["release_version"] * number)
            if not isinstance(release, dict):
                raise document.error(f"a release of {branch} is {_short(release)}", "{...}", branch, "driver_info")
            version = document.release(release.get("release_version"), *place)
            if version.split(".")[0] != branch:
                raise document.error(f"release {version} in branch {branch}", f"{branch}.X", *place)
            day = release.get("release_date")
            date = document.date(day, *place, "release_date") if day else None
            architectures = release.get("architectures")
            if not isinstance(architectures, list):
                problem = f"'architectures' of {version} is {_short(architectures)}"
                raise document.error(problem, '["x86_64", ...]', *place, "architectures")
            if "x86_64" in architectures:
                yield PublishedRelease("driver", version, date, _KINDS[title], "", document.file.name)
