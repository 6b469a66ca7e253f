"""Why an installed driver is not loaded, by the kernel log, systemd-modules-load and DKMS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, runs
from rigwright.core import lazy_re
from rigwright.core.schema import bus_id
from rigwright.facts import Facts, kernel as kernels, kernel_log, systemd

LONGEST = 300
"""Characters of a quoted sentence."""


class LoadFailure(Struct, frozen=True):
    """`said`: the driver's message, or "". `symptom`: a key of the catalogue. `cause`, `fix`: instead of the symptom's,
    or ""."""

    said: str
    symptom: str
    cause: str = ""
    fix: str = ""


def load_failure(facts: Facts, release: str, built: str) -> LoadFailure:
    """Why the driver is not loaded in the running kernel. `built`: the version of its module for that kernel, or ""."""
    if not built:
        return build_failure(facts, release)
    log, units = facts.all(kernel_log.kernel, systemd.module_load_errors)
    nvrm = tuple(dict.fromkeys(complaints(log)))
    said = nvrm[0] if nvrm else "; ".join(units)[:LONGEST]
    key = _symptom("\n".join((*log, *units)), "module.not_loaded")
    return LoadFailure(said, key, *(_not_recognised(nvrm) if key == "branch.not_for_gpu" else ()))


def build_failure(facts: Facts, release: str) -> LoadFailure:
    """Why there is no module for a kernel: the last error of DKMS' build log."""
    log = facts(kernels.build_log(release))
    last = next((line.strip()[:LONGEST] for line in reversed(log.splitlines()) if "rror" in line), "")
    return LoadFailure(last, _symptom(log, "dkms.build_failed"))


def _symptom(text: str, otherwise: str) -> str:
    return next((each.key for each in catalogue.symptoms_in(text) if each.kind in ("driver", "boot")), otherwise)


_OURS = lazy_re.compile(r"NVRM: *(.*)|(?:^|kernel: |\] )((?:Loading of |nvidia[\w-]*: |Lockdown: )\S.*)")
_BEGINS = lazy_re.compile(r"GPU ?[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+: ")
"""The beginning of a sentence about one GPU, also after a sentence without a full stop."""
_ENDS = lazy_re.compile(r"RmInitAdapter failed|rm_init_adapter failed")
_BANNER = lazy_re.compile(
    r"loading NVIDIA UNIX|Persistence mode is deprecated|Xid \(|^nvidia[\w-]*: (?:loading|module)"
)
_BAD = lazy_re.compile(
    r"not supported|fail|refus|reject|ignore|unable|cannot|could not|couldn't|not found|no nvidia|none of the|"
    r"version magic|unknown symbol|disagrees|restricted|error|already (?:owned|in use|up)|conflict|did not|does not|"
    r"can't|timeout|timed out|not connected|fallen off",
    re.IGNORECASE,
)


def complaints(log: Sequence[str]) -> tuple[str, ...]:
    """The error messages of the NVIDIA modules in the kernel log, and those of the kernel about their signatures,
    oldest first. Messages that the driver breaks into lines are joined."""
    texts, ended = [""], False
    for line in log:
        match = _OURS.search(line)
        words = " ".join((match[1] or match[2] or "").split()) if match else ""
        words = "" if _BANNER.search(words) else words
        if ended or not words or _BEGINS.match(words):
            texts.append("")
        texts[-1] = f"{texts[-1]} {words}".strip()
        ended = words.endswith((".", "!")) or bool(_ENDS.search(words)) or "NVRM:" not in line
        ended = ended or len(texts[-1]) > 4 * LONGEST
    return tuple(re.sub(r"\. Please see 'Appendix.*", ".", text)[:LONGEST] for text in texts if _BAD.search(text))


_REFUSED = lazy_re.compile(
    r"GPU ([0-9a-fA-F:.]{7,20}) \(PCI ID: 10de:([0-9a-fA-F]{4})\) installed in this system is not supported "
    r"by the NVIDIA (\d{3})\."
)


def _not_recognised(said: Sequence[str]) -> tuple[str, ...]:
    """Cause and fix if the driver refuses a GPU although its release supports the GPU's PCI id; otherwise ()."""
    match = next((refused for text in said if (refused := _REFUSED.search(text))), None)
    card = card_of(match[2].lower()) if match else None
    if not match or not card or not runs(card, int(match[3])):
        return ()
    cause = (
        f"branch {match[3]} supports this GPU by its PCI id 10de:{match[2].lower()} (branches {card.first_branch} to "
        f"{card.last_branch or 'the newest'}), so its chip did not identify itself when the module asked it; another "
        "branch does not "
        "change that"
    )
    fix = (
        f"sudo poweroff, mains off for 30 seconds, boot; if {bus_id(match[1])} is refused again: reseat the card, "
        "another slot, no "
        "riser; in a virtual machine: look at the passthrough on its host"
    )
    return cause, fix
