"""Checks of the Python environment for training."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import AGAIN, Finding, check, of_symptom, of_text
from rigwright.core.numbers import count
from rigwright.facts import Facts, pci
from rigwright.features.training import facts as facts_of
from rigwright.features.training.torch_build import kernels, runs_on
from rigwright.features.training.variables import Training

SUBJECT = "training environment"
_MAKE = "invoke provision --playbook train"


@check(follows=("driver.", "xid."))
def works(facts: Facts, *, training: Training) -> Iterator[Finding]:
    """The torch of the environment is imported, has kernels for every GPU, and makes an exact product on each of
    them."""
    place, bus = facts.all(facts_of.place(training.path, training.owner, training.python or ""), pci.gpus)
    if place.kind != "own" or not place.whole:
        seen = {"own": "not whole", "other": "not made by rigwright"}.get(place.kind, "not there")
        yield Finding(SUBJECT, "fail", f"{training.path}: {seen}", "a whole environment", "", _MAKE)
        return
    proof = facts(facts_of.proof(training.path, training.owner))
    if proof.torch is None:
        again = f"sudo rm {training.path}/{facts_of.MARK}; then {_MAKE}"
        yield of_text(proof.error or "", SUBJECT, f"torch cannot be imported: {proof.error}", "a torch", fix=again)
        return
    named = f"torch {proof.torch}, Python {proof.python}"
    if proof.cuda is None:
        fix = f"a torch with CUDA in {training.lock or 'the lock'}; then {_MAKE}"
        yield Finding(SUBJECT, "fail", f"{named} is a build without CUDA", "a torch with CUDA", "", fix)
        return
    if proof.error:
        yield of_text(proof.error, SUBJECT, f"{named}: {proof.error}", "CUDA's start", fix="nvidia-smi; invoke verify")
        return
    capabilities = [gpu.capability for gpu in proof.gpus]
    if lacking := kernels(each for each in capabilities if not runs_on(each, proof.architectures)):
        seen = f"{named} has no {lacking} kernels: only {', '.join(proof.architectures)}"
        yield of_symptom("cuda.no_kernel_image", SUBJECT, seen, lacking, verdict="fail", fix=_MAKE)
        return
    for number, gpu in enumerate(proof.gpus):
        if gpu.error is not None:
            yield of_text(gpu.error, SUBJECT, f"{gpu.name}, torch's GPU {number}: {gpu.error}", "a product", fix=AGAIN)
        elif not gpu.right:
            seen = f"{gpu.name}, torch's GPU {number}: a product of whole numbers is wrong"
            fix = "invoke stress; then sudo dmesg | grep -e NVRM -e Xid"
            yield Finding(SUBJECT, "fail", seen, "the exact product", "", fix)
    if any(not gpu.right for gpu in proof.gpus):
        return
    driven = sum(each.driver == "nvidia" for each in bus)
    if len(proof.gpus) != driven:
        seen, cause = f"{named} sees {len(proof.gpus)} of {driven} GPUs", "a GPU that CUDA does not see"
        fix = "nvidia-smi; sudo dmesg | grep -e NVRM -e Xid; then invoke verify"
        yield Finding(SUBJECT, "fail", seen, f"{driven} GPUs", cause, fix)
        return
    built = f"kernels for {kernels(capabilities)} (built for {', '.join(proof.architectures)})"
    seen = f"{named}, NCCL {proof.nccl}: {built}; an exact product on {count(driven, 'GPU')}"
    yield Finding(SUBJECT, "pass", seen)
