"""The identity of a machine: identifiers of its firmware and of its system, and whether two of them are one machine."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.control_characters import one_line

_LONGEST = 64
"""Longer texts of DMI are no identifiers; a serial number has about 15 characters."""

_SERIAL = lazy_re.compile(r"[A-Za-z0-9 ./:_+-]+")

_NO_SERIALS = lazy_re.compile(
    r"to be filled.*|default.*"
    r"|not (specified|applicable|available|provided|present|settable)|.*serial.*|none|n/?a|unknown"
    r"|empty|invalid|undefined|o\.?e\.?m\.?|type2 -.*|standard|xx+",
    re.IGNORECASE,
)
"""Texts that manufacturers leave in place of a serial number."""

_FEWEST_KINDS = 3
"""An identifier has at least this number of different characters: 0000000000 and 11-11-11 are placeholders."""

_SHARED_UUIDS = (
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",  # the same with the first fields in the other byte order
    "12345678-1234-5678-90ab-cddeefaabbcc",
)
"""Product UUIDs that firmware has as long as the manufacturer sets none, so that many boards have them."""


class MachineIdentity(Struct, frozen=True):
    """The identifiers of a machine; "" for one that is unknown, or that does not identify.

    `product_uuid` and `board_serial` are of the firmware (DMI) and readable for root only. `machine_id_hash` is derived
    from /etc/machine-id, which the installation of the system makes. It is not that value, because machine-id(5) asks
    programs to keep it confidential.
    """

    product_uuid: str = ""
    board_serial: str = ""
    machine_id_hash: str = ""

    @classmethod
    def read(cls, product_uuid: str, board_serial: str, machine_id: str) -> MachineIdentity:
        """The identity that the host's texts give. Placeholders, damaged and overlong texts do not identify."""
        id = machine_id.strip().lower()
        derived = hmac.new(id.encode(), b"rigwright", hashlib.sha256).hexdigest()[:32] if _machine_id(id) else ""
        return cls(_uuid(product_uuid), _serial(board_serial), derived)

    @classmethod
    def of(cls, values: object) -> MachineIdentity:
        """The identity from its JSON form; every identifier is validated again. An empty one for another form."""
        if not isinstance(values, Mapping):
            return cls()
        texts = [text if isinstance(text := values.get(name), str) else "" for name in cls.__struct_fields__]
        return cls(_uuid(texts[0]), _serial(texts[1]), _machine_id(texts[2]))

    def __bool__(self) -> bool:
        return any((self.product_uuid, self.board_serial, self.machine_id_hash))

    def __str__(self) -> str:
        if self.board_serial:
            return f"board serial {self.board_serial}"
        if self.product_uuid:
            return f"product UUID {self.product_uuid}"
        return f"machine-id with hash {self.machine_id_hash[:12]}" if self.machine_id_hash else "no identity"

    def compared(self, other: MachineIdentity) -> Literal["same", "other", "unknown"]:
        """Whether both are the same machine.

        The hardware decides: a reinstalled machine has another machine-id. The machine-id decides if the product UUID
        and the board serial contradict each other (a replaced board, or a UUID that many boards have), or if neither
        has an identifier of the hardware. If only one has, an equal machine-id means the same machine.
        """
        agree = [
            mine == theirs for mine, theirs in zip(self._hardware, other._hardware, strict=True) if mine and theirs
        ]
        ids = bool(self.machine_id_hash and other.machine_id_hash)
        if agree and (all(agree) or not any(agree)):
            return "same" if all(agree) else "other"
        if ids and self.machine_id_hash == other.machine_id_hash:
            return "same"
        if agree:
            return "other"
        return "other" if ids and not any((*self._hardware, *other._hardware)) else "unknown"

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """The identity as (`product_uuid`, `board_serial`, `machine_id_hash`) to search by; "*" matches any text."""
        product, board = self._hardware
        keys = [("*", "*", self.machine_id_hash)] if self.machine_id_hash else []
        keys += [(product, board, "*")] if product or board else []
        return (*keys, *([(product, "*", "*")] if product else []), *([("*", board, "*")] if board else []))

    @property
    def keys_of_same(self) -> tuple[tuple[str, str, str], ...]:
        """The `keys` of which each identity that compares as `same` has at least one. Of others only some with the
        same machine-id have one, so a serial number that many boards have finds only this machine."""
        product, board = self._hardware
        keys = [("*", "*", self.machine_id_hash)] if self.machine_id_hash else []
        if product and board:
            return (*keys, (product, board, "*"), (product, "", "*"), ("", board, "*"))
        return (*keys, *([(product, "*", "*")] if product else []), *([("*", board, "*")] if board else []))

    @property
    def has_hardware(self) -> bool:
        """Whether an identifier of the hardware is known."""
        return any(self._hardware)

    @property
    def _hardware(self) -> tuple[str, str]:
        return self.product_uuid, self.board_serial

    def updated(self, newer: MachineIdentity) -> MachineIdentity:
        """This identity with the identifiers that the newer one has."""
        return MachineIdentity(*(getattr(newer, name) or getattr(self, name) for name in self.__struct_fields__))


def _uuid(text: str) -> str:
    word = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", word):
        return ""
    shared = word in _SHARED_UUIDS or len(set(word.replace("-", ""))) < _FEWEST_KINDS
    return "" if shared else word


def _serial(text: str) -> str:
    word = one_line(text)
    characters = re.sub(r"[^0-9a-z]", "", word.lower())
    counted = characters.isdigit() and characters in "01234567890123456789"
    placeholder = len(set(characters)) < _FEWEST_KINDS or len(characters) < 4 or counted or _NO_SERIALS.fullmatch(word)
    return "" if placeholder or len(word) > _LONGEST or not _SERIAL.fullmatch(word) else word


def _machine_id(text: str) -> str:
    word = text.strip().lower()
    return word if re.fullmatch(r"[0-9a-f]{32}", word) and len(set(word)) >= _FEWEST_KINDS else ""
