"""Programs that are not ours, run over a host's GPUs because somebody asked: NVIDIA's nccl-tests, an interpreter's torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rigwright import errand, events
from rigwright.checks import Finding
from rigwright.errand import Errand
from rigwright.errors import ConsentError, UsageError
from rigwright.facts import Fact, Unavailable, Unreadable, pci
from rigwright.facts import programs as facts
from rigwright.hostrun import HostRun

LIMIT_S = 700
USUAL = "usual"


@dataclass(frozen=True)
class Programs:
    """What is to run. `nccl_tests`: USUAL (looked for in the usual places), a path on the host, or "" for not.

    `python`: an interpreter on the host, or "". `busy`: also while processes use the GPUs. Raises UsageError.
    """

    nccl_tests: str = ""
    python: str = ""
    busy: bool = False

    def __post_init__(self) -> None:
        if self.nccl_tests not in ("", USUAL) and not self.nccl_tests.startswith(("/", "~/")):
            found = f"{self.nccl_tests} does not say where on the host"
            raise UsageError("--nccl-tests", found, "nothing, or a folder that begins with / or ~/")
        if "/" in self.python and not self.python.startswith(("/", "~/")):
            found = f"{self.python} does not say where on the host"
            raise UsageError("--python", found, "a path that begins with / or ~/, or a name such as python3")

    def __bool__(self) -> bool:
        return bool(self.nccl_tests or self.python)


def test(run: HostRun, asked: Programs, checks: frozenset[str]) -> tuple[Finding, ...]:
    """What was asked for has run, and its documents are facts of the run; a finding for each that was not.

    `checks`: what the playbook judges. Nothing stays on the host. Raises HostError, Unreachable.
    """
    found = []
    at = [] if asked.nccl_tests == USUAL else ["--at", asked.nccl_tests]
    if asked.nccl_tests:
        found.append(_one(run, asked, checks, facts.nccl_tests, "nccl-tests", at))
    if asked.python:
        found.append(_one(run, asked, checks, facts.torch, "torch", ["--python", asked.python]))
    return tuple(one for one in found if one is not None)


def _one(
    run: HostRun, asked: Programs, checks: frozenset[str], fact: Fact[Any], what: str, words: list[str]
) -> Finding | None:
    """None: it has run. Else why not."""
    named = "PyTorch" if what == "torch" else what
    if fact.name not in checks:
        fix = f"`{fact.name}: {{}}` among its checks"
        return Finding(fact.name, named, "unknown", "not run: the playbook has no check of it", fact.name, "", fix)
    try:
        users = run.busy()
    except ConsentError as error:
        users = error.found
    if users and not asked.busy:
        fix = "end them, then the same command again; or add --busy"
        return Finding(fact.name, named, "unknown", f"not run: the GPUs are in use by {users}", "idle GPUs", "", fix)
    count = sum(one.driver == "nvidia" for one in run.value(pci.gpus))
    if not count:
        return Finding(fact.name, named, "unknown", "not run: no GPU has the nvidia driver", "", "", "invoke provision")
    order = Errand(
        "nccl_programs.py", [what, "--gpus", str(count), "--timeout-s", str(LIMIT_S), *words], LIMIT_S, named
    )
    run.store.known.pop(fact, None)
    say = lambda line: run.emit(events.OutputLine(run.name, named, line))  # noqa: E731
    with run.uncut(named), errand.run(run.transport, order, say, run.go_on):
        run.read((fact,))
    try:
        run.store(fact)
    except (Unavailable, Unreadable) as error:
        del run.store.known[fact]
        fix = "the same command again; journalctl -u rigwright-p2p, on the host"
        return Finding(fact.name, named, "unknown", f"no answer: {error}", "a document", "", fix)
    return None
