"""Long texts are cut after an item of a list, or after a word."""

from __future__ import annotations

import pytest

from rigwright.core import shortening

PACKAGES = [f"libnvidia-compute-{number}-server" for number in range(12)]


@pytest.mark.parametrize("separator", [", ", " "])
def test_a_list_is_cut_after_an_item(separator: str) -> None:
    text = separator.join(PACKAGES)
    short = shortening.shortened(text)
    shown, _, rest = short.rpartition(" and ")
    assert len(shown) <= shortening.LONGEST
    assert shown.split(separator) == PACKAGES[: len(shown.split(separator))]
    assert rest == f"{len(PACKAGES) - len(shown.split(separator))} more"
    assert shortening.shortened("a, b") == "a, b"
    assert shortening.shortened("x" * 200) == "x" * 160 + "..."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("required: after one, two, three", "required: after one, two, three"),
        (
            "required: after the driver, update-grub, reboot, firmware",
            "required: after the driver, update-grub and 2 more",
        ),
        (
            "required: after the driver, update-grub, reboot and 7 more",
            "required: after the driver, update-grub and 8 more",
        ),
        ("the module is of another version, so nothing\n answers here", "the module is of another version, so..."),
        ("x" * 60, "x" * 41 + "..."),
    ],
)
def test_a_text_is_cut_after_an_item_or_a_word(text: str, shown: str) -> None:
    assert shortening.cut(text, 44) == shown
