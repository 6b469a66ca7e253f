"""The conditions of an NCCL test on this host: existing settings, free space in /dev/shm, and a clean environment."""

import contextlib
import os
import pwd
import re
import signal
import sys
import threading
import time

# Environment variables that change CUDA's device list or behaviour. All variables that begin with NCCL_ count too.
CUDA_SETTINGS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
# NCCL treats an empty value of these variables as not set, so the environment can override their lines in nccl.conf.
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
SHM_PER_GPU_MIB = 32  # upper limit of what connections through shared memory use


class Interrupted(Exception):
    """A signal asks this program to end."""


def on_signals(handler):
    """Sets the handler of the signals that ask this program to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)


def interrupt(number, _):
    raise Interrupted(signal.Signals(number).name)


def add_watched(parser, default_s):
    """Adds the options of end_when_left."""
    parser.add_argument("--watched", metavar="FILE", help="end when nobody touches this file any more")
    text = "after that time without a touch (%g)" % default_s
    parser.add_argument("--watched-s", type=float, default=default_s, help=text)


def end_when_left(options, message=None):
    """Ends this program, as a signal does, once nobody has touched the file of --watched for --watched-s."""

    def look():
        with contextlib.suppress(OSError):  # the file is gone
            while time.time() - os.stat(options.watched).st_mtime <= options.watched_s:
                time.sleep(1)
        if message:
            progress(message)
        os.kill(os.getpid(), signal.SIGTERM)

    if options.watched:
        threading.Thread(target=look, daemon=True).start()


def progress(line):
    with contextlib.suppress(OSError):  # the reader of stderr has ended
        print(line, file=sys.stderr, flush=True)


def clean(name):
    return not name.startswith("NCCL_") and name not in CUDA_SETTINGS


def leftovers(environ):
    """Settings of the environment and of NCCL's files: [{"name", "value", "where", "in_force"}].

    in_force: the setting may affect the test, because NCCL before 2.23 always reads the file in the home directory.
    """
    settings = [
        {"name": name, "value": environ[name], "where": "environment", "in_force": False}
        for name in sorted(environ)
        if not clean(name)
    ]
    for path in conf_files(environ):
        for name, value in conf_settings(path):
            ours = name in OURS or name[len("NCCL_") :] in TAKEN_BACK
            kept = not ours and path != environ.get("NCCL_CONF_FILE")
            settings.append({"name": name, "value": value, "where": path, "in_force": kept})
    return settings


def conf_files(environ):
    """NCCL's configuration files, highest precedence first."""
    homes = [environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a user id without an entry, as in some containers
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)  # NCCL uses this one
    own = [os.path.join(home, ".nccl.conf") for home in homes if home]
    named = [environ["NCCL_CONF_FILE"]] if environ.get("NCCL_CONF_FILE") else []
    return list(dict.fromkeys(named + own + ["/etc/nccl.conf"]))


def conf_settings(path):
    """(name, value) of each line NCCL_NAME=VALUE; [] if the file does not exist or is not readable."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    split = [line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#")]
    return [(name.strip(), value.strip()) for name, _, value in split if name.strip().startswith("NCCL_")]


def environment(environ, log, settings):
    """The environment of a test: without the caller's settings and the lines of nccl.conf, with ours."""
    files = [name for path in conf_files(environ) for name, _ in conf_settings(path)]
    made = {name: value for name, value in environ.items() if clean(name)}
    made.update({name: "" for name in files if name[len("NCCL_") :] in TAKEN_BACK})
    made.update(OURS, NCCL_CONF_FILE=os.devnull, NCCL_DEBUG_FILE=log, HOME=os.path.dirname(log))
    made.update(settings)
    return made


def shared_memory(gpus):
    """{"size_mib", "free_mib", "enough"} of /dev/shm for that many GPUs; None without /dev/shm."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    size, free = (blocks * room.f_frsize >> 20 for blocks in (room.f_blocks, room.f_bavail))
    return {"size_mib": size, "free_mib": free, "enough": free >= SHM_PER_GPU_MIB * gpus}


def driver_version():
    """The version of the loaded kernel module; None without one."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read())
    except OSError:
        return None
    return match and match[1]


def place(bus_id):
    """Domain, bus and device of a PCI address, the same for 00000000:0A:00.0 and 0000:0a:00.0."""
    domain, bus, rest = bus_id.lower().split(":")
    return int(domain, 16), int(bus, 16), rest
