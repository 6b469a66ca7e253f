"""NVIDIA's release files: what is read from them, and the messages for damaged files and other forms."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from rigwright.catalogue.feed_files import FeedFile
from rigwright.catalogue.feeds import releases_of
from rigwright.catalogue.releases import PublishedRelease
from rigwright.core.errors import InputError
from tests.catalogue.feed_samples import part, redistrib, releases_json, text

DAY = datetime.date(2026, 8, 3)


def _file(name: str, content: Any) -> FeedFile:
    return FeedFile(name, f"feed/{name}", content if isinstance(content, str) else text(content))


def _read(name: str, content: Any) -> tuple[PublishedRelease, ...]:
    return releases_of([_file(name, content)])


def test_a_driver_of_this_platform() -> None:
    name = "redistrib_580.178.04.json"
    expected = PublishedRelease("driver", "580.178.04", DAY, "", "", name)
    for product in ("nvidia-driver", "nvidia_driver", ""):
        assert _read(name, redistrib("580.178.04", "2026-08-03", product)) == (expected,)
    document = redistrib("580.178.04", "2026-08-03", "nvidia-driver", platform="linux-sbsa")
    assert _read("redistrib_580.178.04.json", document) == ()


def test_cuda_with_and_without_a_driver() -> None:
    with_driver = redistrib("13.1.1", "2026-08-03", "cuda", "590.48.01")
    (entry,) = _read("redistrib_13.1.1.json", with_driver)
    assert (entry.product, entry.branch, entry.driver, entry.feed) == ("cuda", "13.1", "590.48.01", "redistrib cuda")
    for product in ("cuda", ""):
        document = {**redistrib("13.4.2", "2026-08-03", "cuda"), "release_product": product}
        if not product:
            del document["release_product"]
        (entry,) = _read("redistrib_13.4.2.json", document)
        assert (entry.product, entry.release, entry.driver) == ("cuda", "13.4.2", "")


def test_releases_json() -> None:
    rows = ("580", "580.178.04", "2026-08-03"), ("580", "580.173.02", ""), ("595", "595.91.07", "2026-08-03")
    entries = _read("releases.json", releases_json(*rows, kind="production branch"))
    assert [(entry.release, entry.date, entry.kind) for entry in entries] == [
        ("580.178.04", DAY, "production"),
        ("580.173.02", None, "production"),
        ("595.91.07", DAY, "production"),
    ]
    assert _read("releases.json", releases_json(*rows, architectures=["sbsa"])) == ()


def test_truncated_files_are_named_by_line() -> None:
    whole = text(redistrib("580.178.04", "2026-08-03", "nvidia-driver"))
    for end in range(0, len(whole), 23):
        with pytest.raises(InputError) as caught:
            _read("redistrib_580.178.04.json", whole[:end])
        name, _, line = caught.value.where.rpartition(":")
        assert name == "feed/redistrib_580.178.04.json"
        assert whole.count("\n", 0, end) - 1 <= int(line) - 1 <= whole.count("\n", 0, end)
        assert "breaks off or is damaged" in caught.value.found


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' * 100_000, "9" * 10_000, "[]", "null", '"text"'])
def test_json_of_another_form(content: str) -> None:
    with pytest.raises(InputError) as caught:
        _read("redistrib_580.178.04.json", content)
    assert caught.value.where == "feed/redistrib_580.178.04.json:1"
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"release_label": "580.178"}, "release_label", "'release_label' is 580.178 in redistrib_580.178.04.json"),
        ({"release_label": 580}, "release_label", "'release_label' is 580"),
        ({"release_label": {"driver": "580.178.04"}}, "release_label", "'release_label' is {"),
        ({"release_date": "August 2026"}, "release_date", "'release_date' is \"August 2026\""),
        ({"release_date": "2026-13-01"}, "release_date", "2026-13-01"),
        ({"release_product": "cudnn"}, "release_product", "'release_product' is \"cudnn\""),
        ({"release_product": ["cuda"]}, "release_product", "'release_product' is ["),
        ({"nvidia_driver": ["580.178.04"]}, "nvidia_driver", "'nvidia_driver' is ["),
        ({"nvidia_driver": {"release": "580.178.04"}}, "nvidia_driver", "'version' is null"),
        (
            {"nvidia_driver": part("nvidia_driver", "", "580.178.05", "linux-x86_64")},
            "version",
            "'version' is 580.178.05",
        ),
    ],
)
def test_a_newer_form_is_named_by_line(change: dict[str, Any], key: str, words: str) -> None:
    document = {**redistrib("580.178.04", "2026-08-03", "nvidia-driver"), **change}
    content = text(document)
    with pytest.raises(InputError) as caught:
        _read("redistrib_580.178.04.json", content)
    start = content.index('"nvidia_driver"') if key == "version" else 0
    line = content.count("\n", 0, content.index(f'"{key}"', start)) + 1
    assert caught.value.where == f"feed/redistrib_580.178.04.json:{line}"
    assert words in caught.value.found
    assert "--skip" in caught.value.fix


@pytest.mark.parametrize("key", ["release_label", "release_date", "nvidia_driver"])
def test_a_missing_key_is_named(key: str) -> None:
    document = redistrib("580.178.04", "2026-08-03", "nvidia-driver")
    del document[key]
    with pytest.raises(InputError, match=key):
        _read("redistrib_580.178.04.json", document)


@pytest.mark.parametrize(
    ("content", "line_of", "words"),
    [
        ({"R580": {}}, '"R580"', 'the key "R580"'),
        ({"580": []}, '"580"', 'the key "580"'),
        (releases_json(("580", "580.1.1", ""), kind="beta branch"), '"type"', "'type' of 580 is \"beta branch\""),
        ({"580": {"type": ["lts branch"], "driver_info": []}}, '"type"', "'type' of 580 is ["),
        ({"580": {"type": "lts branch"}}, '"580"', "'driver_info' of 580 is null"),
        ({"580": {"type": "lts branch", "driver_info": ["580.1.1"]}}, '"driver_info"', 'a release of 580 is "580.1.1"'),
        (
            releases_json(("580", "580.1.1", ""), ("580", "595.1.1", "")),
            '"release_version": "595',
            "595.1.1 in branch 580",
        ),
        (releases_json(("580", "580.1.1", ""), ("580", "580 beta", "")), '"release_version": "580 ', '"580 beta"'),
        (releases_json(("580", "580.1.1", ""), ("580", "580.1.2", "soon")), '"release_date": "soon"', '"soon"'),
        (
            releases_json(("580", "580.1.1", ""), architectures="x86_64"),
            '"architectures"',
            "'architectures' of 580.1.1",
        ),
    ],
)
def test_a_newer_form_of_releases_json(content: dict[str, Any], line_of: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        _read("releases.json", content)
    whole = text(content)
    assert caught.value.where == f"feed/releases.json:{whole.count(chr(10), 0, whole.index(line_of)) + 1}"
    assert words in caught.value.found


def test_two_files_that_differ() -> None:
    name = "redistrib_580.178.04.json"
    files = [_file(name, redistrib("580.178.04", day, "nvidia-driver")) for day in ("2026-08-03", "2026-08-04")]
    assert len(releases_of([files[0], files[0]])) == 1
    with pytest.raises(InputError, match="differs from that in"):
        releases_of(files)


def test_messages_are_harmless_to_the_terminal() -> None:
    with pytest.raises(InputError) as caught:
        _read("redistrib_580.178.04.json", {"release_label": "\x1b[2J\u202e" * 1000})
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)
    assert len(str(caught.value)) < 600
