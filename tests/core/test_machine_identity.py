"""The identity of a machine: what identifies, and which identities are one machine."""

from __future__ import annotations

import itertools

import pytest
from msgspec import structs

from rigwright.core.machine_identity import MachineIdentity

UUID, OTHER_UUID = "4c4c4544-0042-3510-8052-b4c04f564732", "0ae5c1d2-77f0-11ee-b962-0242ac120002"
ID, OTHER_ID = "0f3b5c6d7e8f90a1b2c3d4e5f6a7b8c9", "9c8b7a6f5e4d3c2b1a09f8e7d6c5b3f0"


@pytest.mark.parametrize(
    "serial",
    [
        "", " ", "To be filled by O.E.M.", "to be filled by oem", "Default string", "default", "System Serial Number",
        "Base Board Serial Number", "Not Specified", "Not Applicable", "None", "N/A", "NA", "Unknown", "OEM", "O.E.M.",
        "Empty",
        "0", "00000000", "0123456789", "123456789", "01234567", "1234567890", "XXXXXXXX", "00-00-00", "A1", "11111111",
        "............",
        "\x1b[31mMH19S00123", "S" * 30 + "ERIAL" * 8, "MH19;reboot", "MH19\u202e00123", "\ufffd\ufffd\ufffd\ufffd",
    ],
)  # fmt: skip
def test_a_serial_number_that_does_not_identify(serial: str) -> None:
    assert MachineIdentity.read("", serial, "") == MachineIdentity()
    assert not MachineIdentity.of({"board_serial": serial})


@pytest.mark.parametrize(
    "serial", ["MH19S00123", "190653821602459", "/7XY00A0/CN00000000A00B/", "C36.5.0-A12", "PF 2K 81Q"]
)
def test_a_serial_number_that_identifies(serial: str) -> None:
    assert MachineIdentity.read("", f" {serial} \t", "").board_serial == serial


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "12345678-1234-5678-90AB-CDDEEFAABBCC", "Not Settable", "4c4c4544", f"{UUID}-00", "",
    ],
)  # fmt: skip
def test_a_uuid_that_does_not_identify(text: str) -> None:
    assert not MachineIdentity.read(text, "", "")


@pytest.mark.parametrize("text", ["0" * 32, "uninitialized", ID[:31], ID + "0", ""])
def test_a_machine_id_that_does_not_identify(text: str) -> None:
    assert not MachineIdentity.read("", "", text)


def test_the_machine_id_itself_is_not_kept() -> None:
    """machine-id(5) asks to keep it confidential; equal ones stay equal, and JSON gives the identity back."""
    identity = MachineIdentity.read(UUID.upper(), "MH19S00123", f"{ID}\n")
    assert ID not in repr(identity)
    assert identity.machine_id_hash != MachineIdentity.read("", "", OTHER_ID).machine_id_hash
    assert MachineIdentity.of(structs.asdict(identity)) == identity
    assert [MachineIdentity.of(value) for value in (None, [], "text", {"board_serial": 7})] == [MachineIdentity()] * 4


def _identity(words: str) -> MachineIdentity:
    """The identity of `UUID SERIAL ID`; `-` for one that is unknown."""
    known = {"u": UUID, "U": OTHER_UUID, "s": "MH19S00123", "S": "MH19S00999", "i": ID, "I": OTHER_ID, "-": ""}
    return MachineIdentity.read(*(known[word] for word in words))


@pytest.mark.parametrize(
    ("before", "now", "compared"),
    [
        ("usi", "usi", "same"),
        ("usi", "usI", "same"),  # reinstalled
        ("usi", "USi", "other"),  # the disk was moved to another machine
        ("usi", "USI", "other"),
        ("usi", "uSi", "same"),  # the board was replaced, and its UUID set again
        ("usi", "uSI", "other"),  # a UUID that many boards have
        ("usi", "Usi", "same"),
        ("-si", "-sI", "same"),
        ("u-i", "u-I", "same"),
        ("u-i", "U-i", "other"),
        ("usi", "--i", "same"),  # read without root
        ("usi", "--I", "unknown"),
        ("u-i", "-si", "same"),
        ("u-i", "-sI", "unknown"),
        ("--i", "--i", "same"),
        ("--i", "--I", "other"),
        ("us-", "us-", "same"),
        ("us-", "--i", "unknown"),
        ("---", "usi", "unknown"),
        ("---", "---", "unknown"),
    ],
)
def test_whether_two_identities_are_one_machine(before: str, now: str, compared: str) -> None:
    assert _identity(before).compared(_identity(now)) == compared
    assert _identity(now).compared(_identity(before)) == compared


def test_an_identity_is_completed_and_written() -> None:
    assert _identity("usi").updated(_identity("--I")) == _identity("usI")
    texts = [str(_identity(words)) for words in ("usi", "u-i", "---")]
    assert texts == ["board serial MH19S00123", f"product UUID {UUID}", "no identity"]
    assert str(_identity("--i")) == f"machine-id with hash {_identity('--i').machine_id_hash[:12]}"


def test_the_keys_find_every_identity_that_is_the_same() -> None:
    every = [MachineIdentity(*ids) for ids in itertools.product(("", "u1", "u2"), ("", "s1", "s2"), ("", "m1", "m2"))]
    for mine, theirs in itertools.product(every, every):
        found = {*mine.keys_of_same} & {*theirs.keys}
        compared = mine.compared(theirs)
        assert found or compared != "same"
        assert not found or compared == "same" or mine.machine_id_hash == theirs.machine_id_hash != ""
