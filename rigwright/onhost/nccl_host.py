"""What stands around a test of NCCL on this host: leftover settings, the room in /dev/shm, and a clean environment."""

import contextlib
import os
import pwd
import re

# Of the environment these change what CUDA shows or does, and all that begins with NCCL_.
CUDA_SETTINGS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
# NCCL reads these as numbers or levels, and an empty one counts as not set. So they can be taken back from nccl.conf.
TAKEN_BACK = """
    P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY IGNORE_DISABLED_P2P SHM_DISABLE
    SHM_LOCALITY SHM_USE_CUDA_MEMCPY CUMEM_ENABLE CUMEM_HOST_ENABLE MNNVL_ENABLE NVLS_ENABLE MIN_NCHANNELS MAX_NCHANNELS
    MIN_CTAS MAX_CTAS NTHREADS BUFFSIZE RUNTIME_CONNECT NET_GDR_LEVEL
""".split()
OURS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,SHM,NET",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_RAS_ENABLE": "0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
SHM_PER_GPU_MIB = 32  # what connections through shared memory take, generously


def clean(name):
    return not name.startswith("NCCL_") and name not in CUDA_SETTINGS


def leftovers(environ):
    """Settings of the environment and of NCCL's files: [{"name", "value", "where", "in_force"}].

    in_force: the setting may stay in force during the test; NCCL before 2.23 reads the file in the home whatever is said.
    """
    found = [
        {"name": name, "value": environ[name], "where": "environment", "in_force": False}
        for name in sorted(environ)
        if not clean(name)
    ]
    for path in conf_files(environ):
        for name, value in conf_settings(path):
            ours = name in OURS or name[len("NCCL_") :] in TAKEN_BACK
            kept = not ours and path != environ.get("NCCL_CONF_FILE")
            found.append({"name": name, "value": value, "where": path, "in_force": kept})
    return found


def conf_files(environ):
    """NCCL's files, the one that wins first."""
    homes = [environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a user without a name, as in some containers
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)  # NCCL asks for this one
    own = [os.path.join(home, ".nccl.conf") for home in homes if home]
    named = [environ["NCCL_CONF_FILE"]] if environ.get("NCCL_CONF_FILE") else []
    return list(dict.fromkeys(named + own + ["/etc/nccl.conf"]))


def conf_settings(path):
    """(name, value) of each line NAME=VALUE; nothing where there is no file, or none that may be read."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    split = [line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#")]
    return [(name.strip(), value.strip()) for name, _, value in split if name.strip().startswith("NCCL_")]


def environment(environ, log, settings):
    """What a run of ours starts with: nobody's settings, ours, and those of nccl.conf taken back."""
    files = [name for path in conf_files(environ) for name, _ in conf_settings(path)]
    made = {name: value for name, value in environ.items() if clean(name)}
    made.update({name: "" for name in files if name[len("NCCL_") :] in TAKEN_BACK})
    made.update(OURS, NCCL_CONF_FILE=os.devnull, NCCL_DEBUG_FILE=log, HOME=os.path.dirname(log))
    made.update(settings)
    return made


def shared_memory(gpus):
    """{"size_mib", "free_mib", "enough"} of /dev/shm for that many GPUs; None where there is none."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    free = room.f_bavail * room.f_frsize >> 20
    return {
        "size_mib": room.f_blocks * room.f_frsize >> 20,
        "free_mib": free,
        "enough": free >= SHM_PER_GPU_MIB * gpus,
    }


def driver_version():
    """What the loaded kernel module calls itself; None where none is loaded."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read())
    except OSError:
        return None
    return match and match[1]


def same_place(one, other):
    """Whether two texts name one PCI place: 00000000:0A:00.0, 0000:0a:00.0."""
    return place(one) == place(other)


def place(bus_id):
    domain, bus, rest = bus_id.lower().split(":")
    return int(domain, 16), int(bus, 16), rest
