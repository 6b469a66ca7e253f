"""The inventory variables `mig` and `ecc` as types: what YAML may say, and whom it is for."""

from __future__ import annotations

from typing import Any

import pytest

from rigwright.core.desired import Ecc
from rigwright.core.errors import InputError
from rigwright.core.mig import Mig, words
from rigwright.core.schema import convert

UUID = "GPU-4e1bbb37-b1a4-586d-98c3-5bb5147b4f95"


def mig(value: Any) -> Mig:
    found = convert(value, Mig, "hosts.yml:3", "mig")
    assert isinstance(found, Mig)
    return found


def test_the_most_specific_name_counts_and_off_is_off_everywhere() -> None:
    assert mig(False).of("a100-sxm4-40gb", "SXM4-0", UUID) == ()
    wanted = mig(
        {"all": ["7g.40gb"], "a100-sxm4-40gb": ["3g.20gb"], "SXM4-0": [], UUID: ["1g.5gb", "3g.20gb/2c+1c", "1g.5gb"]}
    )
    assert words(wanted.of("", "", "") or ()) == "7g.40gb"
    assert words(wanted.of("a100-sxm4-40gb", "SXM4-1", "") or ()) == "3g.20gb"
    assert wanted.of("a100-sxm4-40gb", "SXM4-0", "") == ()
    assert words(wanted.of("a100-sxm4-40gb", "SXM4-0", UUID) or ()) == "3g.20gb/1c+2c, 2 x 1g.5gb"
    assert mig({"SXM4-0": ["7g.40gb"]}).of("a100-sxm4-40gb", "SXM4-1", UUID) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("on", "'mig' is 'on'\n  expected: off, or {all: [3g.20gb, 3g.20gb]}"),
        (["3g.20gb"], "'mig' is ['3g.20gb']\n  expected: off, or {all: [3g.20gb, 3g.20gb]}"),
        ({"all": "3g.20gb"}, "'mig.all' is '3g.20gb'\n  expected: a list: ['3g.20gb']"),
        ({"SXM4-0": [3]}, "'mig.SXM4-0' is 3\n  expected: a text (in quotes)"),
        (True, "'mig': no layout"),
        ({}, "'mig': no layout"),
        ("7g.40gb", "'mig' is '7g.40gb'"),
        ({"all": "7g.40gb"}, "is '7g.40gb'"),
        ({"all": ["7g"]}, "'mig': '7g' is no instance"),
        ({"all": ["0g.5gb"]}, "'0g.5gb' is no instance"),
        ({"all": ["3g.20gb/2c+2c"]}, "'3g.20gb/2c+2c' is no instance"),
        ({"all": ["1g.5gb; reboot"]}, "is no instance"),
    ],
)
def test_what_is_no_layout(value: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        mig(value)
    assert says in str(caught.value)


def test_ecc() -> None:
    assert convert(True, Ecc, "hosts.yml:3", "ecc").of("rtx-3090", "", "") is True
    only = convert({"gpus": {"SXM2-1": True}}, Ecc, "hosts.yml:3", "ecc")
    assert [only.of("v100", position, UUID) for position in ("SXM2-1", "SXM2-2")] == [True, None]
    with pytest.raises(InputError, match="neither enabled nor gpus"):
        convert({}, Ecc, "hosts.yml:3", "ecc")
