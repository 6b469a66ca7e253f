"""Runs in an interpreter with torch, and says what build of torch it is and which GPUs it sees.

    PYTHON torch_build.py FILE      writes BUILD to a file, because torch may print to stdout
    PYTHON torch_build.py           also makes a product on each GPU, and prints BUILD as the last line

    BUILD: {"python", "torch", "cuda", "hip", "nccl", "architectures": ["sm_70", ...], "error", "missing",
            "gpus": [{"name", "capability": "7.0", and for a product "right": true | false | null, "error"}]}

`missing`: torch is not installed. `cuda`, `nccl` null: built without. `error`: of the import, or of the start of CUDA.
`right`: whether the product was exact; null: it failed.
"""

import json
import os
import sys

SIZE = 512


def build_of(products):
    """What build of torch the interpreter has; with `products` also whether each GPU multiplies exactly."""
    document = {"python": sys.version.split()[0], "torch": None, "cuda": None, "hip": None, "nccl": None}
    document.update(architectures=[], gpus=[], error=None, missing=False)
    try:
        import torch
    except Exception as error:  # an import can raise anything
        missing = isinstance(error, ImportError) and getattr(error, "name", None) == "torch"
        return dict(document, missing=missing, error=first_line(error))
    document.update(torch=str(getattr(torch, "__version__", "?")), cuda=getattr(torch.version, "cuda", None))
    document["hip"] = getattr(torch.version, "hip", None)
    if document["cuda"] is None:
        return document
    try:
        flags = torch._C._cuda_getArchFlags()  # get_arch_list() returns [] without a driver
        document["architectures"] = flags.split() if flags else list(torch.cuda.get_arch_list())
    except Exception:
        document["architectures"] = list(torch.cuda.get_arch_list())
    try:
        document["nccl"] = nccl_version(torch)
        torch.cuda.init()
        for number in range(torch.cuda.device_count()):
            capability = "%d.%d" % torch.cuda.get_device_capability(number)
            gpu = {"name": torch.cuda.get_device_name(number)[:100], "capability": capability}
            document["gpus"].append(dict(gpu, **product(torch, number)) if products else gpu)
    except Exception as error:
        document["error"] = first_line(error)
    return document


def product(torch, number):
    """Whether a product of small whole numbers, which floats hold exactly, is the same on the GPU as on the
    processor."""
    left = (torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 7 - 3).float()
    right = (torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 5 - 2).float()
    device = "cuda:%d" % number
    try:
        return {"right": bool(torch.equal((left.to(device) @ right.to(device)).cpu(), left @ right)), "error": None}
    except Exception as error:
        return {"right": None, "error": first_line(error)}


def nccl_version(torch):
    """`2.21.5`; None if torch has no NCCL or no torch.distributed."""
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()
    if isinstance(version, int):  # 2708, as up to torch 1.11
        return "%d.%d.%d" % (version // 1000, version % 1000 // 100, version % 100)
    return ".".join(str(part) for part in version)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ("%s: %s" % (type(error).__name__, lines[0] if lines else "no word"))[:300]


def main():
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    # torch must not import files beside this one
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    if not sys.argv[1:]:
        print(json.dumps(build_of(products=True)))
        return
    path, build = sys.argv[1], build_of(products=False)
    with open(path + ".new", "w") as file:
        json.dump(build, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
