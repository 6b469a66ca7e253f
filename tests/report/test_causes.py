"""Texts of one cause are recognized by what does not differ between hosts, and shown once."""

from __future__ import annotations

import pytest

from rigwright.report.causes import cause_of, common, listed, variants, without_addresses, without_places


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("86 C under load", "91 C under load"),
        ("3 x Xid 79 since boot", "12 x Xid 79 since boot"),
        ("/var 40 MiB free", "/var 812 MiB free"),
        ("0000:06:00.0 GPU-531aad71 vbios", "0000:0a:00.0 GPU-39223592 vbios"),
        ("no answer from 192.0.2.9, port 22", "no answer from 192.0.2.10, port 22"),
        ("58% of its model's figure", "61.5% of its model's figure"),
        ("driver 535.261.03", "driver 535.183.01"),
        ("key SHA256:abc/+1= is another", "key SHA256:zzz is another"),
    ],
)
def test_the_same_cause(one: str, other: str) -> None:
    assert cause_of(one) == cause_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 x Xid 79 since boot", "3 x Xid 31 since boot"),
        ("driver 535 has no fixes", "driver 580 has no fixes"),
        ("kernel 6.8.0-71-generic", "kernel 6.8.0-60-generic"),
        ("port 22", "port 2222"),
    ],
)
def test_another_cause(one: str, other: str) -> None:
    assert cause_of(one) != cause_of(other)


def test_what_is_left_out_of_a_text() -> None:
    assert cause_of("invoke stress --host a again", "a") == "invoke stress --host HOST again".replace(
        "again", "HOSTgHOSTin"
    )
    assert cause_of("ssh gpu1", "gpu1") == cause_of("ssh gpu2", "gpu2") == "ssh HOST"
    assert without_places("Limits in force: SXM2-1 0000:06:00.0") == "Limits in force"
    assert without_places("0000:06:00.0 GPU-531aad71 (serial 0320682532638)") == "GPU"
    assert without_addresses("refused (192.0.2.9, port 22)") == "refused (ADDRESS, port 22)"


def test_of_several_texts_there_is_one() -> None:
    assert (
        common(["86 C, expected 70 C", "91 C, expected 70 C", "84 C, expected 65 C"])
        == "84 to 91 C, expected 65 to 70 C"
    )
    assert common(["9 rows", "10 rows"]) == "9 to 10 rows"
    assert common(["6.8.0-71", "6.8.0-60", "6.8.0-60"]) == "6.8.0-60"
    assert (common(["one"]), common([])) == ("one", "")
    assert variants(["a", "b", "b", "c", "d", "d", "d"]) == "d (3), b (2), a (1) and 1 more"
    assert variants(["300 W", "250 W"]) == "250 to 300 W"
    assert variants(["a", "a"]) == "a"
    text = listed(", ".join(f"node{number}x{number}" for number in range(0, 1000, 2)))
    assert len(text) < 200
    assert text.endswith("more")
