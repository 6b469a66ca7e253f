"""CUDA: the compiler, its libraries, and the PyTorch wheels that have kernels for these GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue.compatibility import torch_wheel
from rigwright.catalogue.summary import counted_ids
from rigwright.checks import Finding, Verdict, check
from rigwright.core.desired import Cuda, Driver
from rigwright.facts import Facts, pci
from rigwright.facts import cuda as toolkits

_CAPABILITY = "nvidia-smi --query-gpu=name,compute_cap --format=csv"


@check(follows=("run.",))
def compiler(facts: Facts, *, cuda: Cuda) -> Iterator[Finding]:
    """The toolkit's nvcc reports its release, and the dynamic linker finds the toolkit's runtime."""
    release, runtime = facts.all(toolkits.nvcc(cuda.toolkit), toolkits.runtime(cuda.toolkit))
    verdict: Verdict = "pass" if release == cuda.toolkit and runtime else "fail"
    seen = f"nvcc {release or 'does not answer'}, libcudart {'found' if runtime else 'not found by ldconfig'}"
    yield Finding("CUDA", verdict, seen, f"nvcc {cuda.toolkit}, libcudart found", fix="invoke provision")


@check()
def wheels(facts: Facts, *, driver: Driver) -> Iterator[Finding]:
    """Reports which PyTorch wheels have kernels for every GPU of the host and run on its driver. Installs nothing."""
    gpus = facts(pci.gpus)
    models = [model for gpu in gpus if (model := catalogue.model_of(gpu.device_id))]
    unknown = counted_ids(gpu.device_id for gpu in gpus if catalogue.model_of(gpu.device_id) is None)
    if unknown or not gpus:
        seen = f"the architecture of {unknown} is not known" if unknown else "no NVIDIA GPU on the PCI bus"
        fix = f"{_CAPABILITY} shows it; torch.cuda.get_arch_list() of a wheel must contain it" if unknown else ""
        yield Finding("PyTorch", "info", f"no wheels are named: {seen}", "", "", fix)
        return
    choice = torch_wheel(models, driver)
    day = catalogue.torch_wheels().as_of
    kinds = ", ".join(dict.fromkeys(model.architecture for model in models))
    if choice is None:
        seen = f"no line of wheels is known for {kinds} on driver {driver.branch} (as of {day})"
        yield Finding("PyTorch", "info", seen, "", "", "build it, or use a container of that time")
        return
    until = f", up to torch {choice.last}," if choice.last else ""
    yield Finding(
        "PyTorch", "info", f"the {choice.name} wheels{until} have kernels for {kinds} (as of {day})", "", "", ""
    )
