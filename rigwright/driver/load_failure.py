"""Why an installed driver is not loaded, in its own words: those of the kernel log, of systemd-modules-load, and of
DKMS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, runs
from rigwright.core import lazy_re
from rigwright.core.schema import bus_id
from rigwright.facts import Facts, kernel_log, systemd
from rigwright.facts import kernel as kernels

LONGEST = 300
"""Characters of a sentence that are quoted."""


class LoadFailure(Struct, frozen=True):
    """`said`: the sentence, "" when there is none. `symptom`: the key in the catalogue. `cause` and `fix`: "" where
    those of the symptom are right."""

    said: str
    symptom: str
    cause: str = ""
    fix: str = ""


def load_failure(facts: Facts, release: str, built: str) -> LoadFailure:
    """Why the driver is not loaded in the kernel that runs. `built`: the version of its module for that kernel, ""
    without one."""
    if not built:
        return build_failure(facts, release)
    log, units = facts.all(kernel_log.kernel, systemd.module_load_errors)
    nvrm = sentences(log)
    of_units = "; ".join(units)[:LONGEST]
    text = "\n".join((*log, *units))
    known = next((each for each in catalogue.symptoms_in(text) if each.kind in ("driver", "boot")), None)
    said = nvrm[0] if nvrm else of_units
    if known is None:
        return LoadFailure(said, "module.not_loaded")
    if known.key == "branch.not_for_gpu" and (left := _not_recognised(nvrm)):
        return LoadFailure(said, known.key, *left)
    return LoadFailure(said, known.key)


def build_failure(facts: Facts, release: str) -> LoadFailure:
    """Why there is no module for a kernel: the last error of DKMS' build log."""
    log = facts(kernels.build_log(release))
    known = next((each.key for each in catalogue.symptoms_in(log) if each.kind in ("driver", "boot")), "")
    last = next((line.strip()[:LONGEST] for line in reversed(log.splitlines()) if "rror" in line), "")
    return LoadFailure(last, known or "dkms.build_failed")


_OURS = lazy_re.compile(r"NVRM: *(.*)|(?:^|kernel: |\] )((?:Loading of |nvidia[\w-]*: |Lockdown: )\S.*)")
_BEGINS = lazy_re.compile(r"GPU ?[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+: ")
"""The beginning of a sentence about one GPU, also after one that has no full stop."""
_ENDS = lazy_re.compile(r"RmInitAdapter failed|rm_init_adapter failed")
_BANNER = lazy_re.compile(
    r"loading NVIDIA UNIX|Persistence mode is deprecated|Xid \(|^nvidia[\w-]*: (?:loading|module)"
)
_BAD = lazy_re.compile(
    r"not supported|fail|refus|reject|ignore|unable|cannot|could not|couldn't|not found|no nvidia|none of the|version magic|unknown symbol|"
    r"disagrees|restricted|error|already (?:owned|in use|up)|conflict|did not|does not|can't|timeout|timed out|not connected|fallen off",
    re.IGNORECASE,
)


def sentences(log: Sequence[str]) -> tuple[str, ...]:
    """The complaints of the NVIDIA modules in lines of the kernel log, and those of the kernel about their signatures,
    oldest first.

    A sentence that the driver breaks into lines is put together again. Each is there once.
    """
    return tuple(dict.fromkeys(complaints(log)))


def complaints(log: Sequence[str]) -> tuple[str, ...]:
    """The same as `sentences`, each as often as the log has it."""
    found: list[str] = []
    part = ""
    for line in log:
        match = _OURS.search(line)
        words = " ".join((match[1] or match[2] or "").split()) if match else ""
        if not words or _BANNER.search(words):
            found.append(part)
            part = ""
            continue
        if part and _BEGINS.match(words):
            found.append(part)
            part = ""
        part = f"{part} {words}" if part else words
        ends = words.endswith((".", "!")) or _ENDS.search(words) or "NVRM:" not in line
        if ends or len(part) > 4 * LONGEST:
            found.append(part)
            part = ""
    bad = (re.sub(r"\. Please see 'Appendix.*", ".", text) for text in (*found, part) if _BAD.search(text))
    return tuple(text[:LONGEST] for text in bad)


_REFUSED = lazy_re.compile(
    r"GPU ([0-9a-fA-F:.]{7,20}) \(PCI ID: 10de:([0-9a-fA-F]{4})\) installed in this system is not supported by the NVIDIA (\d{3})\."
)


def _not_recognised(said: Sequence[str]) -> tuple[str, str] | None:
    """Cause and fix where the driver refuses a GPU that its release supports by the GPU's PCI id; None for any
    other."""
    match = next((found for text in said if (found := _REFUSED.search(text))), None)
    card = card_of(match[2].lower()) if match else None
    if not match or not card or not runs(card, int(match[3])):
        return None
    cause = (
        f"branch {match[3]} supports this GPU by its PCI id 10de:{match[2].lower()} (branches {card.first_branch} to "
        f"{card.last_branch or 'the newest'}), so its chip did not identify itself when the module asked it; another branch does not "
        "change that"
    )
    fix = (
        f"sudo poweroff, mains off for 30 seconds, boot; if {bus_id(match[1])} is refused again: reseat the card, another slot, no "
        "riser; in a virtual machine: look at the passthrough on its host"
    )
    return cause, fix
