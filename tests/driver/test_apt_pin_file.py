"""rigwright writes and reads its preferences file, also with comments and fields that the user added."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.core.errors import InputError
from rigwright.core.templates import host_files
from rigwright.driver.apt_pin import Pin, pin_text, read_pins

OWNERS = """\
# Ours, since 2024.
{% for pin in pins %}
# {{ loop.index }}
Explanation: the driver moves with a ticket only
Package: {{ pin.packages | join(" ") }}
# exactly
Pin: {{ pin.pin }}
Pin-Priority: {{ pin.priority }}

{% endfor %}
Package: firefox
Pin: release a=stable
Pin-Priority: 990
"""
WANTED = [
    Pin(("nvidia-driver-535", "libcuda1"), "release l=NVIDIA", -1),
    Pin(("nvidia-driver-535", "libcuda1"), "version 535.1*", 1001),
    Pin(("linux-modules-nvidia",), "version 6.8", 1001),
    Pin(("cuda-drivers* *nvidia*",), "version *", -1),
]


def written(folders: tuple[Path, ...] = ()) -> str:
    also = {"6.8": ["linux-modules-nvidia"]}
    templates = host_files.owners(folders)
    names = ["nvidia-driver-535", "libcuda1"]
    return pin_text(names, "535.1*", "cuda-drivers* *nvidia*", also, "release l=NVIDIA", templates)


def test_what_is_written_is_read_back() -> None:
    wanted = [*WANTED[:3], Pin(("cuda-drivers*", "*nvidia*"), "version *", -1)]
    assert list(read_pins(written())) == wanted
    assert [pin.version for pin in wanted] == ["", "535.1*", "6.8", ""]


def test_an_owner_s_comments_and_stanzas_are_read_over(tmp_path: Path) -> None:
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/pin.j2").write_text(OWNERS)
    text = written((tmp_path,))
    assert "Explanation: the driver moves with a ticket only\nPackage: nvidia-driver-535 libcuda1\n# exactly\n" in text
    assert list(read_pins(text))[:-1] == list(read_pins(written()))


def test_folded_fields_and_other_spellings() -> None:
    text = "package: a\n b\nPIN: version 1*\nPin-Priority:  1001 \n\n\nPackage: c\nPin: version 2\nPin-Priority: high\n"
    assert list(read_pins(text)) == [Pin(("a", "b"), "version 1*", 1001)]


@pytest.mark.parametrize("line", ["Pin: {{ pin.pin }}\n", "Pin-Priority: {{ pin.priority }}\n"])
def test_one_that_leaves_out_a_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/pin.j2").write_text(OWNERS.replace(line, ""))
    with pytest.raises(InputError, match="lacks 'Package: nvidia-driver-535") as caught:
        host_files.owners((tmp_path,))
    assert caught.value.where == str(tmp_path / "apt/pin.j2")
