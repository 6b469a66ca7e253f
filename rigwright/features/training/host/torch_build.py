"""Runs in an interpreter with torch, and writes to a file what build of torch it is. Python 3.8.

    PYTHON torch_build.py FILE

    BUILD: {"python", "torch", "cuda", "hip", "nccl", "architectures": ["sm_70", ...],
            "gpus": [{"name", "capability": "7.0"}], "error", "missing"}

To a file, because torch may print to stdout. `missing`: torch is not installed. `cuda`, `nccl` null: built without.
`error`: of the import, or of the start of CUDA.
"""

import json
import os
import sys


def write(path, document):
    with open(path + ".new", "w") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


def build(path):
    document = {"python": sys.version.split()[0], "torch": None, "cuda": None, "hip": None, "nccl": None}
    document.update(architectures=[], gpus=[], error=None, missing=False)
    try:
        import torch
    except Exception as error:  # an import can raise anything
        document["missing"] = isinstance(error, ImportError) and getattr(error, "name", None) == "torch"
        document["error"] = first_line(error)
        write(path, document)
        return
    document.update(torch=str(getattr(torch, "__version__", "?")), cuda=getattr(torch.version, "cuda", None))
    document["hip"] = getattr(torch.version, "hip", None)
    if document["cuda"] is not None:
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
                document["gpus"].append({"name": torch.cuda.get_device_name(number), "capability": capability})
        except Exception as error:
            document["error"] = first_line(error)
    write(path, document)


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
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "no word")


def main():
    own = os.path.dirname(os.path.abspath(__file__))
    # torch must not import files beside this one
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    build(sys.argv[1])


if __name__ == "__main__":
    main()
