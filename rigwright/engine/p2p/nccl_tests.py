"""Runs NVIDIA's nccl-tests over a host's GPUs, on request."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rigwright.checks import Finding
from rigwright.core.errors import UsageError
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.report import NcclTestResult
from rigwright.facts import Fact, Unavailable, Unreadable, pci
from rigwright.facts.nccl import nccl_tests as facts

NAME, LIMIT_S = "nccl-tests", 700
USUAL = "usual"


class Programs(Struct, frozen=True):
    """The programs to run. `nccl_tests`: USUAL (searched in the usual places), or a path on the host. `busy`: also
    while processes use the GPUs. Raises UsageError.
    """

    nccl_tests: str
    busy: bool = False

    def __post_init__(self) -> None:
        if self.nccl_tests != USUAL and not self.nccl_tests.startswith(("/", "~/")):
            raise UsageError(
                "--nccl-tests",
                f"{self.nccl_tests} does not say where on the host",
                "nothing, or a folder that begins with / or ~/",
                f"--nccl-tests=/path/to/{self.nccl_tests}",
            )


def test(run: HostRun, programs: Programs, needed: frozenset[Fact[Any] | None]) -> NcclTestResult:
    """Runs nccl-tests; their document becomes a fact of the run. The result has a finding if they did not run.

    `needed`: the facts that checks of the playbook need. Nothing stays on the host. Raises HostError, Unreachable.
    """
    finding = _run(run, programs, facts.nccl_tests in needed)
    return NcclTestResult(None, (finding,) if finding else ())


def _run(run: HostRun, programs: Programs, needed: bool) -> Finding | None:
    fact = facts.nccl_tests

    def not_run(problem: str, expected: str, fix: str) -> Finding:
        return Finding("nccl-tests", "unknown", problem, expected, "", fix, check=fact.name)

    if not needed:
        return not_run("not run: the playbook has no check of it", fact.name, f"add `{fact.name}:` to its checks")
    if (use := gpu_use(run, continues=NAME)) and not programs.busy:
        return not_run(f"not run: {use}", "idle GPUs", "end them, then the same command again; or add --busy")
    count = sum(gpu.driver == "nvidia" for gpu in run.value(pci.gpus))
    if not count:
        return not_run("not run: no GPU has the nvidia driver", "", "invoke provision")
    words = ["--gpus", str(count), "--timeout-s", str(LIMIT_S)]
    words += [] if programs.nccl_tests == USUAL else ["--at", programs.nccl_tests]
    onhost_program.run_and_read(run, OnhostProgram("nccl_programs.py", words, LIMIT_S, NAME), fact)
    try:
        run.store(fact)
    except (Unavailable, Unreadable) as error:
        del run.store.known[fact]
        fix = "the same command again; journalctl -u rigwright-p2p, on the host"
        return not_run(f"no answer: {error}", "a document", fix)
    return None
