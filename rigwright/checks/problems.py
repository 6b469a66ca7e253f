"""Groups findings with one cause, on one GPU or on the machine, into problems with one fix.

A finding belongs to the problem of another finding if it follows from that one: by consequences.yml for a finding with
a symptom, by the `follows` of its check for a finding without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

from msgspec import Struct
from msgspec.structs import asdict, replace

from rigwright.checks import VERDICTS, Declaration, Finding, Verdict, declared, ranked
from rigwright.core import fix_steps, lazy_re, submodules
from rigwright.core.fix_steps import Step
from rigwright.core.numbers import count
from rigwright.core.process.program_name import as_typed
from rigwright.core.shortening import cut, first_of

BAD: tuple[Verdict, ...] = ("fail", "unknown", "warn")
"""The verdicts of findings that make problems."""
MANY = 4
"""If more GPUs than this have the same problem, it is one problem: they have a cause in common (assumed)."""
DRIFT = ("plan", "fleet.past", "fleet.peers", "fleet.gpus")
"""Checks that compare a host with its playbook, its past and its peers."""
_BUS_ID = lazy_re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_NAMED = lazy_re.compile(rf"(\S{{1,64}}) ({_BUS_ID.pattern})", re.IGNORECASE)
_NO_POSITION = ("and", "bridge", "nvswitch")
"""Words before a bus id that are not the position of a GPU."""
_INDEX = lazy_re.compile(r"\bGPU \d+\b")
_NUMBERED = "GPU"
"""Stands for a GPU that the driver only numbers (`GPU 2`), because it lost it."""
_BETWEEN_GPUS = ("fabric", "p2p")
"""Kinds of symptoms that concern links between GPUs."""
_INTERRUPTED = "run.interrupted"
"""A job runs on the host: differences from the playbook and unanswered checks follow from it."""
_LONGEST = 100
"""Characters of a value in a title."""
_SHOWN = 3
"""Problems that the sentence of a judgement names."""


class Problem(Struct, frozen=True):
    """One cause with its consequences. `gpus`: the affected GPUs by position or bus id; () for the machine. `short`:
    the fault in a few words. `steps`: the fix. `findings`: the evidence, the cause first."""

    verdict: Verdict
    gpus: tuple[str, ...]
    short: str
    cause: str
    steps: tuple[Step, ...]
    symptom: str
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """The GPUs and what is wrong with them: `SXM2-3: lost`."""
        return f"{listed(self.gpus)}: {self.short}" if self.gpus else self.short

    @property
    def short_alone(self) -> str:
        """`short` for a line without the name of the GPU: `GPU lost`."""
        from rigwright import catalogue

        known = catalogue.all_symptoms().get(self.symptom)
        return known.short if self.gpus and known and known.short else self.short

    @property
    def drift(self) -> bool:
        """Whether all findings are differences from the playbook, the past or the peers."""
        return all(finding.check in DRIFT for finding in self.findings)

    @property
    def hardware(self) -> bool:
        """Whether GPUs have a fault for which they must not be used."""
        from rigwright import catalogue

        known = catalogue.all_symptoms().get(self.symptom)
        return bool(self.gpus) and known is not None and known.kind in ("hardware", "power")


def listed(names: Sequence[str], most: int = MANY) -> str:
    """The names with commas; if there are more than `most`, the first ones and the number of the others."""
    return first_of(names, most if len(names) <= most else most - 1)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of their numbers: SXM3-2 before SXM3-10."""
    return tuple(sorted(names, key=lambda name: [(len(part), part) for part in re.findall(r"\d+|\D+", name)]))


@lru_cache(maxsize=512)  # a report, its verdict and equal hosts have the same findings
def problems(findings: tuple[Finding, ...]) -> tuple[Problem, ...]:
    """The problems of a machine, worst first; () if no finding is bad. Every bad finding belongs to exactly one."""
    every = ranked(findings)
    bad = [finding for finding in every if finding.verdict in BAD]
    if not bad:
        return ()
    gpus = _Gpus(every)
    about = [gpus.of(finding) for finding in bad]
    scope = _scope(bad, about)
    roots = [number for number in range(len(bad)) if not _causes(number, bad, scope)]
    roots = roots or [0]  # findings that explain each other in a circle: the first is the cause
    groups = _merged(roots, bad, about)
    members = [list(group) for group in groups]
    for number in range(len(bad)):
        if not any(number in group for group in groups):
            members[_owner(number, groups, bad, scope)].append(number)
    made = (_problem([bad[at] for at in of], roots, about) for of, roots in zip(members, groups, strict=True))
    return _with_one_restart(sorted(made, key=lambda problem: VERDICTS.index(problem.verdict)))


def _with_one_restart(made: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems. If one needs a reboot or a cold boot, the weaker restarts of others refer to it."""
    hardware = [problem for problem in made if problem.hardware and problem.verdict == "fail"]
    needs = [max((step.restart for step in problem.steps), default=0) for problem in hardware]
    level = max(needs, default=0)
    if level < 2:
        return tuple(made)
    gpus, boot = hardware[needs.index(level)].gpus, "cold boot" if level == 3 else "reboot"
    instead = Step(f"no reset of its own: the {boot} that {listed(gpus)} needs does it")
    return tuple(
        replace(problem, steps=tuple(instead if 0 < step.restart < level else step for step in problem.steps))
        if problem in hardware
        else problem
        for problem in made
    )


def _scope(bad: Sequence[Finding], about: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """The GPUs of each finding; for a finding without GPUs, those of the other findings with its symptom."""
    of_symptom: dict[str, frozenset[str]] = {}
    for finding, gpus in zip(bad, about, strict=True):
        of_symptom[finding.symptom] = of_symptom.get(finding.symptom, frozenset()) | gpus
    of_symptom[""] = frozenset()
    return [gpus or of_symptom[finding.symptom] for finding, gpus in zip(bad, about, strict=True)]


class _Gpus:
    """Finds the GPUs in the subject of a finding."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        named = [match for finding in findings for match in _NAMED.findall(finding.subject)]
        self._position = {bus_id.lower(): name for name, bus_id in named if name.lower() not in _NO_POSITION}
        self._names = {*self._position.values()}

    def of(self, finding: Finding) -> frozenset[str]:
        """The positions, or the bus ids of GPUs without one; for several pairs, the GPU that all have. Empty: not
        known."""
        pairs = [self._in(part) for part in finding.subject.split(", ")]
        known = [pair for pair in pairs if pair]
        if not known:
            return frozenset()
        return frozenset.union(*known) if all(len(gpus) == 1 for gpus in known) else frozenset.intersection(*known)

    def _in(self, text: str) -> frozenset[str]:
        ids = {self._position.get(bus_id.lower(), bus_id.lower()) for bus_id in _BUS_ID.findall(text)}
        numbered = {_NUMBERED} if _INDEX.search(text) else set()
        return frozenset(ids | {word for word in text.split() if word in self._names} | numbered)


def _causes(number: int, bad: Sequence[Finding], about: Sequence[frozenset[str]]) -> list[int]:
    """The findings from which a finding follows: first those with its symptom, then those on its own GPUs, then those
    of the machine."""
    effect = bad[number]
    causes = [
        at
        for at, cause in enumerate(bad)
        if at != number and _overlap(about[at], about[number]) and _explains(cause, effect)
    ]
    return sorted(causes, key=lambda at: (bad[at].symptom != effect.symptom, -len(about[at] & about[number])))


def _overlap(cause: frozenset[str], effect: frozenset[str]) -> bool:
    return not cause or not effect or bool(cause & effect) or effect == {_NUMBERED}


def _explains(cause: Finding, effect: Finding) -> bool:
    """Whether one finding may follow from another one, on the same GPU."""
    from rigwright.catalogue.consequences import follows

    if effect.check == cause.check:
        return False
    if cause.symptom == _INTERRUPTED and (effect.check == "plan" or effect.verdict == "unknown"):
        return True
    declaration = _declaration(effect.check)
    if effect.symptom and follows(effect.symptom, cause.symptom):
        return True
    if declaration is None or (effect.symptom and not _of_the_past(effect)):
        return False
    return declaration.explained_by(cause.check, cause.symptom)


@cache
def _declaration(check: str) -> Declaration | None:
    """The declaration of a check, also if its finding comes from a document and the check did not run here."""
    submodules.load("rigwright.checks", check.partition(".")[0])
    return declared(check)


def _merged(roots: Sequence[int], bad: Sequence[Finding], about: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """The roots of each problem: equal ones about the same GPU, about links, or about many GPUs."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number in roots:
        groups.setdefault(_key(bad[number]), []).append(number)
    return [group for same in groups.values() for group in _apart(same, bad, about)]


def differs(finding: Finding) -> bool:
    """Whether a finding is a difference from the playbook."""
    return finding.check == "plan" and finding.verdict == "fail"


def _key(finding: Finding) -> tuple[str, ...]:
    if finding.symptom:
        return (finding.symptom,)
    if finding.verdict == "unknown":
        return ("unknown", finding.seen)
    if differs(finding):
        return ("plan",)
    return (finding.verdict, finding.check, finding.cause, _BUS_ID.sub("", finding.fix))


def _apart(same: Sequence[int], bad: Sequence[Finding], about: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """Splits equal roots by their GPU or pair of GPUs; more than MANY stay together."""
    from rigwright import catalogue

    known = catalogue.all_symptoms().get(bad[same[0]].symptom)
    # The log has an error of a link at one end or at both, without the GPU at the other end.
    if known is None or (known.kind in _BETWEEN_GPUS and _of_the_past(bad[same[0]])):
        return [tuple(same)]
    places = {about[number] for number in same if about[number]}
    least = [gpus for gpus in places if not any(other < gpus for other in places)]
    if len(least) < 2 or len(least) > MANY:
        return [tuple(same)]
    groups: dict[frozenset[str], list[int]] = {gpus: [] for gpus in sorted(least, key=_in_order)}
    first = next(iter(groups))
    for number in same:
        groups[next((gpus for gpus in groups if gpus <= about[number]), first)].append(number)
    return [tuple(group) for group in groups.values()]


def _of_the_past(finding: Finding) -> bool:
    declaration = _declaration(finding.check)
    return declaration is not None and declaration.past


def _owner(
    number: int, groups: Sequence[tuple[int, ...]], bad: Sequence[Finding], about: Sequence[frozenset[str]]
) -> int:
    """The problem of the first cause of a finding, or of the cause of a cause."""
    causes = _causes(number, bad, about)
    for cause in causes:  # grows while it is read
        for at, group in enumerate(groups):
            if cause in group:
                return at
        causes += [further for further in _causes(cause, bad, about) if further not in (number, *causes)]
    return 0


def _problem(findings: Sequence[Finding], roots: Sequence[int], about: Sequence[frozenset[str]]) -> Problem:
    root = findings[0]
    of_machine = differs(root) and not all(about[number] for number in roots)
    gpus = () if of_machine else _in_order({gpu for number in roots for gpu in about[number]})
    verdict = min((finding.verdict for finding in findings), key=VERDICTS.index)
    restarts = tuple(fix_steps.steps(finding.fix) for finding in findings[1:] if finding.verdict != "unknown")
    steps = fix_steps.strongest(fix_steps.steps(root.fix), restarts)
    short = _short(root, len(roots), bool(gpus))
    return Problem(verdict, gpus, short, root.cause, steps, root.symptom, tuple(findings))


def _short(root: Finding, roots: int, of_gpus: bool) -> str:
    from rigwright import catalogue

    symptom = catalogue.all_symptoms().get(root.symptom)
    if symptom:
        what = symptom.short.removeprefix("GPU ") or symptom.title[0].lower() + symptom.title[1:]
        return what if of_gpus or symptom.short == "" else f"{root.subject}: {what}"
    if differs(root):
        return f"{count(roots, 'difference')} from the playbook"
    if root.verdict == "unknown" and roots > 1:
        return f"{roots} checks could not be answered: {_cut(root.seen)}"
    seen = _cut(root.seen) + (f", expected {_cut(root.expected)}" if root.expected else "")
    return seen if of_gpus else f"{root.subject}: {seen}"


def _cut(text: str) -> str:
    return cut(text, _LONGEST)


class Judgement(Struct, frozen=True):
    """Whether a machine can be used, in a sentence. `level`: the worst verdict."""

    level: Verdict
    sentence: str


def judge(
    made: Sequence[Problem], findings: Sequence[Finding], error: str = "", answered: bool = True, required: int = 0
) -> Judgement | None:
    """The verdict on a machine; None if no check ran. `error`: the message that stopped the run on the host.
    `answered`: whether the host was reached. `required`: the number of warnings about required tests."""
    if not answered:
        return Judgement("unknown", "Not known: the host does not answer")
    if error:
        return Judgement("fail", f"Not known: the run stopped, {_cut(error)}")
    if not findings:
        return None
    unproved = _titles([problem for problem in made if problem.verdict == "unknown"])
    if failed := [problem for problem in made if problem.verdict == "fail"]:
        also = f"; not proved: {first_of(unproved, 1)}" if unproved else ""
        return Judgement("fail", f"{_refusal(failed)}{also}")
    if unproved:
        return Judgement("unknown", f"Not proved: {_first_titles(unproved)}")
    warnings = sum(problem.verdict == "warn" for problem in made) - required
    more = [count(warnings, "warning")] if warnings else []
    if required:
        return Judgement("warn", ", ".join([f"Not proved: {required_in_words(required)}", *more]))
    if more:
        return Judgement("warn", f"Fit, with {more[0]}")
    passed = sum(finding.verdict == "pass" for finding in findings)
    holds = "1 check holds" if passed == 1 else f"{passed} checks hold"
    accepted = sum(finding.is_accepted for finding in findings)
    also = f", {count(accepted, 'warning')} accepted" if accepted else ""
    return Judgement("pass", f"Fit for work: {holds}{also}")


def required_in_words(tests: int) -> str:
    """`1 test is required`, `2 tests are required`."""
    return f"{count(tests, 'test')} {'is' if tests == 1 else 'are'} required"


def _refusal(failed: Sequence[Problem]) -> str:
    of_gpus = [problem for problem in failed if problem.hardware]
    parts: dict[str, list[str]] = {}
    for problem in of_gpus:
        parts.setdefault(listed(problem.gpus), []).append(problem.short)
    texts = [f"{gpus}: {' and '.join(dict.fromkeys(words))}" for gpus, words in parts.items()]
    others = _titles([problem for problem in failed if not problem.hardware])
    drift = all(problem.drift for problem in failed)
    begins = "Do not use " if of_gpus else "Not as configured: " if drift else "Not fit for work: "
    if of_gpus and others:
        others[0] = f"also {others[0]}"
    return begins + _first_titles([*texts, *others])


def _first_titles(titles: Sequence[str]) -> str:
    more = [f"and {len(titles) - _SHOWN} more"] if len(titles) > _SHOWN else []
    return "; ".join([*titles[:_SHOWN], *more])


def _titles(made: Sequence[Problem]) -> list[str]:
    """The titles of problems. Differences of one value from the past and from the peers have one title:
    `kernel: 6.8.0-71, expected 6.8.0-60 (past), 5.15.0-130 (peers)`."""
    alike: dict[tuple[object, ...], list[Problem]] = {}
    for number, problem in enumerate(made):
        root = problem.findings[0]
        compared = root.check in DRIFT and not differs(root)
        alike.setdefault((problem.gpus, root.subject, root.seen) if compared else (number,), []).append(problem)
    titles = []
    for same in alike.values():
        roots = [problem.findings[0] for problem in same]
        title = same[0].title
        if len({root.expected for root in roots}) > 1:
            several = ", ".join(f"{_cut(root.expected)} ({root.source})" for root in roots)
            title = f"{title.removesuffix(_cut(roots[0].expected))}{several}"
        titles.append(title)
    return titles


def as_json(problem: Problem) -> Mapping[str, object]:
    """The problem for the JSON document, which identifies findings by check and subject."""
    return {
        "title": problem.title,
        "verdict": problem.verdict,
        "gpus": list(problem.gpus),
        "cause": problem.cause,
        "steps": [{name: as_typed(text) for name, text in asdict(step).items()} for step in problem.steps],
        "symptom": problem.symptom,
        "findings": [{"check": finding.check, "subject": finding.subject} for finding in problem.findings],
    }
