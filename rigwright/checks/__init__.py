"""Checks: pure functions from facts and keyword parameters to findings. A playbook names one as MODULE.FUNCTION."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core.plugin_name import plugin_name
from rigwright.facts import Fact

Verdict = Literal["pass", "info", "warn", "fail", "unknown"]
Source = Literal["", "rig", "inventory", "catalogue", "host", "peers", "past"]
"""The origin of the expected value: the rig, the inventory, the catalogue, another value of the same host, the other
GPUs, or the host's last good run."""

AGAIN = "fix the findings above, then run it again"
"""The fix of a check that could not run because of another failure."""

VERDICTS: tuple[Verdict, ...] = ("fail", "unknown", "warn", "info", "pass")
"""All verdicts, worst first."""


class Finding(Struct, frozen=True):
    """The result of a check for one subject. `cause`: the most likely one first. `fix`: a command, or what to do with
    the hardware. `symptom`: a key of the catalogue. `check`: MODULE.FUNCTION, which the decorator sets. `accepted`:
    whether the owner's acceptance of it counts, "" without one (`checks/accepted.py`)."""

    subject: str
    verdict: Verdict
    seen: str
    expected: str = ""
    cause: str = ""
    fix: str = ""
    source: Source = ""
    symptom: str = ""
    check: str = ""
    accepted: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether it is a warning that the owner has accepted."""
        return self.verdict == "info" and bool(self.accepted)


_Check = Callable[..., Iterator[Finding]]
F = TypeVar("F", bound=_Check)

_DECLARATIONS: dict[str, Declaration] = {}
declared = _DECLARATIONS.get
"""The declaration of MODULE.FUNCTION; None if its module is not imported or declares no such function."""


class Declaration(Struct, frozen=True, kw_only=True):
    """What a check declares; `check` is the decorator.

    `active`: it needs the measurements of the peer-to-peer test, so only a run with that test runs it.
    `needs`: a fact whose program runs on request only; without that fact the check does not run.
    `replaces`: a check that does not run where this one does.
    `gpu_health`: it judges the present state of the GPUs, so `fleet.check` runs it on every host.
    `follows`: symptoms, groups of symptoms ("ecc.") and checks whose findings explain a finding of this check on the
    same GPU or on no single GPU. For a finding with a symptom, consequences.yml is used instead. `past`: its findings
    are past events, so `follows` applies to all of them.
    """

    active: bool = False
    needs: Fact[Any] | None = None
    replaces: _Check | None = None
    gpu_health: bool = False
    follows: tuple[str | _Check, ...] = ()
    past: bool = False

    def __call__(self, function: F) -> F:
        """Declares the function as a check. Its findings get its name; passing ones lose their cause and fix."""
        name = plugin_name(function)
        _DECLARATIONS[name] = self

        @wraps(function)
        def named_findings(*facts: Any, **parameters: Any) -> Iterator[Finding]:
            for finding in function(*facts, **parameters):
                passed = {"cause": "", "fix": ""} if finding.verdict == "pass" else {}
                yield replace(finding, check=name, **passed)

        return cast(F, named_findings)

    def explained_by(self, check: str, symptom: str) -> bool:
        """Whether `follows` names a check (MODULE.FUNCTION) or a symptom."""
        return any(
            (symptom == cause or (cause.endswith(".") and symptom.startswith(cause)))
            if isinstance(cause, str)
            else check == plugin_name(cause)
            for cause in self.follows
        )


check = Declaration


def of_symptom(
    key: str,
    subject: str,
    seen: str,
    expected: str = "",
    source: Source = "",
    *,
    verdict: Verdict | None = None,
    fix: str = "",
    names: Mapping[str, str] | None = None,
) -> Finding:
    """A finding with the verdict, cause and fix of a symptom, unless `verdict` or `fix` is given. `names` replaces
    words in capitals in the fix: {"INDEX": "2"}."""
    from rigwright import catalogue

    known = catalogue.all_symptoms()[key]
    several = f"; invoke explain {key} lists {len(known.causes)} possible causes" if known.causes else ""
    fix = fix or f"{known.fix}{several}"
    for word, value in (names or {}).items():
        fix = fix.replace(word, value)
    return Finding(subject, verdict or known.level, seen, expected, known.cause, fix, source, key)


def of_text(
    text: str,
    subject: str,
    seen: str,
    expected: str = "",
    *,
    verdict: Verdict = "fail",
    fix: str = "invoke explain 'ITS TEXT'",
) -> Finding:
    """A finding with cause and fix of the first symptom in an error text, or with `fix` if no symptom matches."""
    from rigwright import catalogue

    for symptom in catalogue.symptoms_in(text):
        return of_symptom(symptom.key, subject, seen, expected, verdict=verdict)
    return Finding(subject, verdict, seen, expected, fix=fix)


def unknown(check: str, subject: str, reason: str, fix: str = "") -> Finding:
    """A finding for a check that the host cannot answer now; cause and fix as in `of_text`, by default `invoke
    provision`."""
    return replace(of_text(reason, subject, reason, verdict="unknown", fix=fix or "invoke provision"), check=check)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorts findings by verdict, worst first. Within a verdict the order stays: the playbook lists root causes
    first."""
    return tuple(sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict)))
