"""Checks: pure functions from facts and parameters to findings. They change nothing.

A playbook names one as MODULE.FUNCTION. Its first parameter is `facts`; the others are keyword parameters. The
decorator `check` declares what the engine has to know of it.
"""

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
"""Where the expected value comes from: the rig, the inventory, the catalogue's data on a model, another value of the
same host (the port above a GPU, the other version numbers), the other GPUs, or the host's last good run."""

AGAIN = "fix the findings above, then run it again"
"""The fix of a check that could not run because of another failure."""

VERDICTS: tuple[Verdict, ...] = ("fail", "unknown", "warn", "info", "pass")
"""All verdicts, worst first."""


class Finding(Struct, frozen=True):
    """The result of a check for one subject: what it saw, what was expected and who says so, and the fix (a command or
    a hardware fix).

    `check` is MODULE.FUNCTION; the decorator sets it. `cause` names the most likely cause first. `symptom` is the
    catalogue's key, "" where the catalogue has none.
    """

    subject: str
    verdict: Verdict
    seen: str
    expected: str = ""
    cause: str = ""
    fix: str = ""
    source: Source = ""
    symptom: str = ""
    check: str = ""


_Check = Callable[..., Iterator[Finding]]
F = TypeVar("F", bound=_Check)


_DECLARATIONS: dict[str, Declaration] = {}
declared = _DECLARATIONS.get
"""The declaration of MODULE.FUNCTION; None if its module is not imported or declares no such function."""


class Declaration(Struct, frozen=True, kw_only=True):
    """What a check declares; `check` is the decorator.

    `active`: it judges what the peer-to-peer test measured, so only a run with that test can answer it.
    `needs`: a fact without which it cannot be answered, read only after the program of that fact has run on request.
    `replaces`: a check that it replaces where both can be answered.
    `gpu_health`: it judges the present state of the GPUs, so `fleet.check` runs it on every host.
    `follows`: symptoms, groups of symptoms ("ecc.") and checks whose findings explain a finding of this check on the
    same GPU, or one about no single GPU. A finding with a symptom of its own follows from what consequences.yml says
    instead. `past`: its findings are past events, so `follows` counts for all of them.
    """

    active: bool = False
    needs: Fact[Any] | None = None
    replaces: _Check | None = None
    gpu_health: bool = False
    follows: tuple[str | _Check, ...] = ()
    past: bool = False

    def __call__(self, function: F) -> F:
        """Declares the function as a check. Its findings get its name; those that pass lose their cause and fix."""
        name = plugin_name(function)
        _DECLARATIONS[name] = self

        @wraps(function)
        def named(*facts: Any, **parameters: Any) -> Iterator[Finding]:
            for finding in function(*facts, **parameters):
                cause, fix = ("", "") if finding.verdict == "pass" else (finding.cause, finding.fix)
                yield Finding(
                    finding.subject, finding.verdict, finding.seen, finding.expected, cause, fix, finding.source, finding.symptom,
                    check=name,
                )  # fmt: skip

        return cast(F, named)

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
    """A finding whose verdict, cause and fix are those of a symptom of the catalogue.

    `names` replaces words in capitals in the fix: {"INDEX": "2"}. `fix` replaces the symptom's fix.
    """
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
    """A finding with cause and fix of the first symptom in the text of an error; with `fix` if there is none."""
    from rigwright import catalogue

    for symptom in catalogue.symptoms_in(text):
        return of_symptom(symptom.key, subject, seen, expected, verdict=verdict)
    return Finding(subject, verdict, seen, expected, fix=fix)


def unknown(check: str, subject: str, reason: str, fix: str = "") -> Finding:
    """A finding for a check that the host cannot answer now, with cause and fix if the catalogue knows the reason; else
    with `fix`, which is `invoke provision` if the reason names none."""
    finding = of_text(reason, subject, reason, verdict="unknown", fix=fix or "invoke provision")
    return replace(finding, check=check)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorts findings: fail, unknown, warn, info, pass. Within a verdict the order of the playbook's checks stays, in
    which root causes come first."""
    return tuple(sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict)))
