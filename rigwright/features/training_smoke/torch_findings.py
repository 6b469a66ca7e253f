"""Findings on the torch of an interpreter before it trains: CUDA, the driver, and kernels for the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.catalogue.compatibility import torch_wheel
from rigwright.checks import Finding, of_symptom, of_text
from rigwright.core.desired import Driver
from rigwright.core.numbers import numbers
from rigwright.features.training.torch_build import TorchBuild, kernels, runs_on
from rigwright.features.training_smoke.facts import Smoke

SUBJECT = "PyTorch"


def torch_findings(document: Smoke, loaded: str | None, models: Sequence[Model]) -> Iterator[Finding]:
    """One finding on the torch; the fix of a failing one names the wheels that the catalogue knows."""
    build, examined, python = document.build, document.examined, document.python
    fix = _wheels(python, loaded, models)
    if build is None:
        yield _no_answer(document)
    elif build.missing:
        yield Finding(SUBJECT, "fail", f"{python} has no torch", "a torch with CUDA", "", fix)
    elif build.torch is None:
        known = next(iter(catalogue.symptoms_in(f"{build.error}\n{examined.said}")), None)
        cause = known.cause if known else "a library of its own that is missing, or of another version"
        yield Finding(SUBJECT, "fail", f"torch cannot be imported: {build.error}", "a torch", cause, fix)
    elif build.cuda is None:
        kind = f"built for AMD's ROCm {build.hip}" if build.hip else "a build for processors, without CUDA"
        yield Finding(SUBJECT, "fail", f"torch {build.torch} is {kind}", "a torch with CUDA", "", fix)
    else:
        yield _with_cuda(build, document, loaded, models, fix)


def _no_answer(document: Smoke) -> Finding:
    """The finding on an interpreter that did not say what its torch is."""
    run, python = document.examined, document.python
    if run.outcome == "hang":
        fix = "nvidia-smi; sudo dmesg | grep -e NVRM -e Xid; then invoke explain 'ITS TEXT'"
        seen = f"import torch and the start of CUDA do not end within {run.limit_s:g} s; killed"
        return Finding(SUBJECT, "fail", seen, "an answer", "a GPU that does not answer, or a slow disk", fix)
    if run.outcome == "not run":
        who = f", for {document.user}" if "ermission" in (run.error or "") else ""
        seen = f"{python}: {run.error}{who}"
    else:
        last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "no word")
        seen = f"{python} does not answer as a Python does: {last.strip()[:160]}"
    fix = "--python with the path of an interpreter on the host, such as ~/venv/bin/python"
    return Finding(SUBJECT, "unknown", f"not run: {seen}", "an interpreter on the host", "", fix)


def _with_cuda(build: TorchBuild, document: Smoke, loaded: str | None, models: Sequence[Model], fix: str) -> Finding:
    cuda = build.cuda or ""
    in_version = f"+cu{cuda.replace('.', '')}" in str(build.torch)
    named = f"torch {build.torch}" if in_version else f"torch {build.torch}, CUDA {cuda}"
    least = catalogue.family_minimum(cuda)
    if loaded and numbers(loaded) < numbers(least):
        seen, wanted = f"{named}, and driver {loaded} is loaded", f"driver {least} or newer, or an older CUDA"
        return of_symptom("cuda.driver_too_old", SUBJECT, seen, wanted, "catalogue", verdict="fail", fix=fix)
    capabilities = [gpu.capability for gpu in build.gpus] or [model.compute_capability for model in models]
    lacking = kernels(each for each in capabilities if not runs_on(each, build.architectures))
    if lacking and build.architectures:
        seen = f"{named} has no {lacking} kernels: only {', '.join(build.architectures)}"
        return of_symptom("cuda.no_kernel_image", SUBJECT, seen, lacking, verdict="fail", fix=fix)
    if build.error:
        return of_text(build.error, SUBJECT, f"{named}: {build.error}", "CUDA's start", fix="nvidia-smi; invoke verify")
    if len(build.gpus) != document.gpus:
        seen = f"{named} sees {len(build.gpus)} of {document.gpus} GPUs"
        todo = "nvidia-smi; sudo dmesg | grep -e NVRM -e Xid; then invoke verify"
        return Finding(SUBJECT, "fail", seen, f"{document.gpus} GPUs", "a GPU that CUDA does not see", todo)
    if build.nccl is None:
        return Finding(SUBJECT, "fail", f"{named} was built without NCCL", "NCCL", "", fix)
    old = next((item for item in catalogue.symptoms_in(f"NCCL version {build.nccl}") if item.kind == "p2p"), None)
    if old:
        return of_symptom(old.key, SUBJECT, f"{named}, NCCL {build.nccl}", "another NCCL")
    return Finding(SUBJECT, "pass", f"{named}, NCCL {build.nccl}: kernels for {kernels(capabilities)}")


def _wheels(python: str, loaded: str | None, models: Sequence[Model]) -> str:
    """What to install: the newest line of wheels with kernels for every GPU that runs on the loaded driver."""
    choice = None
    if loaded and re.fullmatch(r"\d{3}(\.\d+)+", loaded):
        choice = torch_wheel(models, Driver(loaded.split(".")[0], loaded))
    if choice is None:
        wanted = "a torch whose torch.cuda.get_arch_list() holds these GPUs"
        return f"{wanted}; invoke verify --tags cuda says which wheels do"
    spec, as_of = f"'torch=={choice.last}.*'" if choice.last else "torch", catalogue.torch_wheels().as_of
    return f"{python} -m pip install {spec}, from PyTorch's {choice.name} wheels (as of {as_of})"
