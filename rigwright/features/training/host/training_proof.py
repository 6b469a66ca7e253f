"""Runs in an environment with torch: imports it, and makes a product on each GPU that must be exact. Prints one JSON
line.

{"schema": 1, "python", "torch", "cuda", "nccl", "architectures": ["sm_70"], "error",
 "gpus": [{"name", "capability": "7.0", "right": true | false | null, "error"}]}
"""

import json
import sys

SIZE = 512


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ("%s: %s" % (type(error).__name__, lines[0] if lines else "no word"))[:300]


def product(torch, number):
    """Whether a product of small whole numbers, which floats hold exactly, is the same on the GPU and on the
    processor."""
    left = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 7 - 3
    right = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 5 - 2
    expected = left.float() @ right.float()
    device = "cuda:%d" % number
    return bool(torch.equal((left.float().to(device) @ right.float().to(device)).cpu(), expected))


def prove():
    found = {"schema": 1, "python": sys.version.split()[0], "torch": None, "cuda": None, "nccl": None}
    found.update(architectures=[], gpus=[], error=None)
    try:
        import torch
    except Exception as error:  # an import can raise anything
        return dict(found, error=first_line(error))
    found.update(torch=str(torch.__version__), cuda=torch.version.cuda)
    if torch.version.cuda is None:
        return found
    try:
        flags = torch._C._cuda_getArchFlags()  # get_arch_list() returns [] without a driver
        found["architectures"] = flags.split() if flags else list(torch.cuda.get_arch_list())
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        torch.cuda.init()
        count = torch.cuda.device_count()
    except Exception as error:
        return dict(found, error=first_line(error))
    for number in range(count):
        gpu = {"name": "?", "capability": "0.0", "right": None, "error": None}
        found["gpus"].append(gpu)
        try:
            gpu["name"] = torch.cuda.get_device_name(number)[:100]
            gpu["capability"] = "%d.%d" % torch.cuda.get_device_capability(number)
            gpu["right"] = product(torch, number)
        except Exception as error:
            gpu["error"] = first_line(error)
    return found


print(json.dumps(prove()))
