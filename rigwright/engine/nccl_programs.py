"""Runs programs of the user over a host's GPUs on request: NVIDIA's nccl-tests, and a PyTorch program with the user's interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rigwright.checks import Finding
from rigwright.core.errors import UsageError
from rigwright.engine import onhost_program
from rigwright.engine.host_report import NcclTestResult
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.facts import Fact, Unavailable, Unreadable, pci
from rigwright.facts import nccl_programs as facts

LIMIT_S = 700
USUAL = "usual"


@dataclass(frozen=True)
class Programs:
    """The programs to run. `nccl_tests`: USUAL (searched in the usual places), a path on the host, or "" for no nccl-tests.

    `python`: an interpreter on the host, or "" for no PyTorch program. `busy`: also while processes use the GPUs.
    Raises UsageError.
    """

    nccl_tests: str = ""
    python: str = ""
    busy: bool = False

    def __post_init__(self) -> None:
        folder = "" if self.nccl_tests == USUAL else self.nccl_tests
        _require_absolute("--nccl-tests", folder, "nothing, or a folder that begins with / or ~/")
        python = self.python if "/" in self.python else ""
        _require_absolute("--python", python, "a path that begins with / or ~/, or a name such as python3")

    def __bool__(self) -> bool:
        return bool(self.nccl_tests or self.python)


def _require_absolute(option: str, path: str, expected: str) -> None:
    if path and not path.startswith(("/", "~/")):
        raise UsageError(option, f"{path} does not say where on the host", expected, f"{option}=/path/to/{path}")


def test(run: HostRun, programs: Programs, needed: frozenset[Fact[Any] | None]) -> NcclTestResult:
    """Runs the programs; their documents become facts of the run. The result has a finding for each that did not run.

    `needed`: the facts that checks of the playbook need. Nothing stays on the host. Raises HostError, Unreachable.
    """
    folder = [] if programs.nccl_tests == USUAL else ["--at", programs.nccl_tests]
    requested: dict[Fact[Any], tuple[str, list[str]]] = {}
    if programs.nccl_tests:
        requested[facts.nccl_tests] = "nccl-tests", ["nccl-tests", *folder]
    if programs.python:
        requested[facts.torch] = "PyTorch", ["torch", "--python", programs.python]
    results = [_run_program(run, programs.busy, fact, *words, fact in needed) for fact, words in requested.items()]
    return NcclTestResult(None, tuple(finding for finding in results if finding is not None))


def _run_program(
    run: HostRun, busy: bool, fact: Fact[Any], title: str, words: list[str], needed: bool
) -> Finding | None:
    def not_run(seen: str, expected: str, fix: str) -> Finding:
        return Finding(title, "unknown", seen, expected, "", fix, check=fact.name)

    if not needed:
        return not_run("not run: the playbook has no check of it", fact.name, f"add `{fact.name}:` to its checks")
    if (use := run.gpu_use()) and not busy:
        return not_run(f"not run: {use}", "idle GPUs", "end them, then the same command again; or add --busy")
    count = sum(gpu.driver == "nvidia" for gpu in run.value(pci.gpus))
    if not count:
        return not_run("not run: no GPU has the nvidia driver", "", "invoke provision")
    arguments = [words[0], "--gpus", str(count), "--timeout-s", str(LIMIT_S), *words[1:]]
    onhost_program.run_and_read(run, OnhostProgram("nccl_programs.py", arguments, LIMIT_S, title), fact)
    try:
        run.store(fact)
    except (Unavailable, Unreadable) as error:
        del run.store.known[fact]
        fix = "the same command again; journalctl -u rigwright-p2p, on the host"
        return not_run(f"no answer: {error}", "a document", fix)
    return None
