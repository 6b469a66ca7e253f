"""CUDA: the compiler, its libraries, and the PyTorch wheels that have kernels for these GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue.compatibility import torch_wheel
from rigwright.catalogue.summary import counted_ids
from rigwright.checks import Finding, Verdict, check
from rigwright.core.desired import Cuda, Driver
from rigwright.facts import Facts, cuda as toolkits, pci


@check(follows=("run.",))
def compiler(facts: Facts, *, cuda: Cuda) -> Iterator[Finding]:
    """Each toolkit's nvcc reports its release, and the dynamic linker finds its runtime. The default toolkit is
    /usr/local/cuda, and login shells have its nvcc."""
    of_toolkits = [fact(release) for release in cuda.toolkits for fact in (toolkits.nvcc, toolkits.runtime)]
    in_shell, chosen, *answers = facts.all(toolkits.login_nvcc, toolkits.alternative, *of_toolkits)
    for wanted, release, runtime in zip(cuda.toolkits, answers[::2], answers[1::2], strict=True):
        verdict: Verdict = "pass" if release == wanted and runtime else "fail"
        seen = f"nvcc {release or 'does not answer'}, libcudart {'found' if runtime else 'not found by ldconfig'}"
        subject = f"CUDA {wanted}" if cuda.beside else "CUDA"
        yield Finding(subject, verdict, seen, f"nvcc {wanted}, libcudart found", fix="invoke provision")
    home = f"/usr/local/cuda-{cuda.toolkit}"
    right = in_shell == cuda.toolkit and (chosen is None or chosen.value == home)
    seen = f"nvcc {in_shell or 'none'} on the PATH of a login shell"
    seen += f", /usr/local/cuda is {chosen.value}" if chosen else ""
    cause = "a file in /etc/profile.d puts another toolkit first" if in_shell not in ("", cuda.toolkit) else ""
    wanted_text = f"nvcc {cuda.toolkit}" + (f", {home}" if chosen else "")
    fix = "grep -rn cuda /etc/profile /etc/profile.d; invoke provision"
    yield Finding("CUDA, default", "pass" if right else "warn", seen, wanted_text, cause, fix)


@check()
def wheels(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """Reports which PyTorch wheels have kernels for every GPU of the host and run on its driver. Installs nothing."""
    gpus = facts(pci.gpus)
    models = [model for gpu in gpus if (model := catalogue.model_of(gpu.device_id))]
    unknown = counted_ids(gpu.device_id for gpu in gpus if catalogue.model_of(gpu.device_id) is None)
    if unknown or not gpus:
        seen = f"the architecture of {unknown} is not known" if unknown else "no NVIDIA GPU on the PCI bus"
        capability = "nvidia-smi --query-gpu=name,compute_cap --format=csv"
        fix = f"{capability} shows it; torch.cuda.get_arch_list() of a wheel must contain it" if unknown else ""
        yield Finding("PyTorch", "info", f"no wheels are named: {seen}", fix=fix)
        return
    choice = torch_wheel(models, driver)
    day = catalogue.torch_wheels().as_of
    kinds = ", ".join(dict.fromkeys(model.architecture for model in models))
    if choice is None:
        seen = f"no line of wheels is known for {kinds} on driver {driver.branch} (as of {day})"
        yield Finding("PyTorch", "info", seen, fix="build it, or use a container of that time")
        return
    until = f", up to torch {choice.last}," if choice.last else ""
    yield Finding("PyTorch", "info", f"the {choice.name} wheels{until} have kernels for {kinds} (as of {day})")
