#!/usr/bin/env python3
"""Set persistence, power limit and clocks of every GPU of this machine, and set them again on GPUs that lost them.

    gpu_limits.py apply [--config FILE] [--wait-s 120]   at boot from gpu-limits.service, or by hand
    gpu_limits.py watch [--config FILE]                  each minute from gpu-limits.timer: sets limits that were lost
    gpu_limits.py show [--config FILE]                   print the values in force as one JSON document
    gpu_limits.py reset                                  power and clocks back to the defaults, until the next apply

It needs root (except show), and pynvml.py of nvidia-ml-py beside this file. Exit status: 0 every GPU is as
wanted, or has a value that somebody set and that watch leaves alone; 1 a GPU refused, or the driver does not answer;
3 (apply, reset) GPUs are lost or missing; 2 wrong usage. Each failure is on stderr; the other GPUs are set anyway. From
a checkout on the machine itself: sudo scripts/gpu_limits.py show.

The configuration: {"expected_gpus": 4, "positions": {"0000:06:00.0": "SXM2-1"}, "gpus": [{"match": {"uuid": "GPU-..."},
"persistence": true, "power_limit_w": 200, "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
"locked_graphics_mhz": [210, 1400], "locked_memory_mhz": [405, 9501]}]}. A GPU takes the first rule that matches; match
is {"uuid": ...}, {"pci_bus_id": ...} or {} for any. What is left out is left alone, and so are the application clocks
of a GPU or a driver that has none.

No driver reports which clocks are locked. So each lock that a driver accepted is a line in
/run/rigwright/locked-clocks: UUID graphics|memory MIN MAX BOOT_ID LOAD CODE. The line is valid while the boot and the
load of the driver are the same.

A lost GPU can block a process in a kernel call for ever, and kill does not end it. So each GPU has its own process,
which holds no file of this program open (show has one for all, as long as all answer). A process that does not answer
in time is not waited for.
"""

import contextlib
import fcntl
import functools
import json
import os
import re
import select
import signal
import sys
import time
import types

# pynvml needs ctypes.util on Windows only, and that imports subprocess and shutil: a third of the time of show.
sys.modules.setdefault("ctypes.util", types.ModuleType("ctypes.util")).__dict__.setdefault("find_library", None)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import pynvml
except ImportError:
    sys.exit("there is no pynvml.py (of nvidia-ml-py) beside %s: invoke provision puts it there" % __file__)

ROOT = os.environ.get("RIGWRIGHT_ROOT", "")  # tests keep their /etc, /run, /sys and /proc in a folder
CONFIG = ROOT + "/etc/rigwright/limits.json"
RUN = ROOT + "/run/rigwright"
RECORD = RUN + "/locked-clocks"
MEMORY = RUN + "/limits-drift"  # JSON: the messages of the last watch, and the processes that hang
RESTS = RUN + "/limits-rest"  # exists after reset: then watch does nothing; rigwright checks for it
MODULE = ROOT + "/sys/module/nvidia"
FINAL = {4, 12, 15, 16, 18}  # no permission, no library, GPU lost, reset needed, wrong library: waiting does not help
LOST = {15, 16}
WITHOUT = {3, 26}  # NVML's answer of a GPU without application clocks, and of a driver that has them no longer
SHOW_S = 20  # how long one GPU may take in show and watch, seconds
ABSENT = 3  # exit status: GPUs are lost or missing; all others have their limits
FIXES = {  # by NVML error code
    3: "this GPU cannot do it: take {key} out of its limits",
    4: "it wants root: sudo systemctl restart gpu-limits.service",
    9: "is it installed and built? sudo modprobe nvidia; journalctl -k -g NVRM",
    13: "the driver is too old for it: take {key} out of its limits",
    15: "it fell off the bus: journalctl -k -g Xid; then power the machine off and on",
    16: "sudo nvidia-smi --gpu-reset -i {bus_id}, or power the machine off and on",
    18: "the driver was upgraded and not yet loaded: reboot",
    26: "this driver has it no longer: take {key} out of its limits",
}


class Refused(Exception):
    """A GPU or the driver does not do what is wanted; the text is for the journal."""


# --- each GPU in a process of its own


def ask_all(tasks, timeout_s, stuck, heard=None):
    """Runs the functions in parallel, each in its own process. Takes and returns dictionaries by name.

    An answer is {"value": the function's result} or {"error": text, "code": NVML's number or None}; heard(answer) is
    called for each as it arrives. `stuck`: {name: [process, its start]} of functions whose process of an earlier run
    hangs in the kernel, which do not run again; a name whose process hangs now is added.
    """
    answers, running = {}, {}  # running: read end of the pipe -> (name, process, parts of the answer)
    for name, task in tasks.items():
        if name in stuck and start_ticks(stuck[name][0]) == stuck[name][1]:
            error = "no answer; process %d that asked it still hangs in the kernel" % stuck[name][0]
            answers[name] = {"error": error, "code": None, "hangs": True}
            continue
        stuck.pop(name, None)
        answers[name] = {"error": "no answer within %g s" % timeout_s, "code": None, "hangs": True}
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            answer_and_exit(task, write_end)
        os.close(write_end)
        running[read_end] = (name, process, [])
    deadline = time.monotonic() + timeout_s
    while running and time.monotonic() < deadline:
        for end in select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))[0]:
            name, process, parts = running[end]
            parts.append(os.read(end, 65536))
            if not parts[-1]:
                try:
                    answers[name] = json.loads(b"".join(parts).decode())
                except ValueError:
                    answers[name] = {"error": "the process that asked it died", "code": None}
                if heard:
                    heard(answers[name])
                os.close(end)
                os.waitpid(process, 0)
                del running[end]
    for end, (name, process, _) in running.items():
        os.kill(process, signal.SIGKILL)
        os.close(end)
        if not has_ended(process):
            stuck[name] = [process, start_ticks(process)]
    return answers


def answer_and_exit(task, write_end):
    """In the child process: close all inherited files, call the function, write the answer, exit."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(3, write_end)
        os.closerange(write_end + 1, 1024)
        try:
            pynvml.nvmlInit()
            answer = {"value": task()}
        except pynvml.NVMLError as error:
            answer = {"error": text(str(error)), "code": error.value}
        except Exception as error:
            answer = {"error": "%s: %s" % (type(error).__name__, error), "code": None}
        with os.fdopen(write_end, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def has_ended(process, within_s=0.5):
    """Whether the killed child has ended. Waits no longer for a child that hangs in the kernel."""
    deadline = time.monotonic() + within_s
    while not os.waitpid(process, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def start_ticks(process):
    """The start time of a process in clock ticks; None when there is no such process."""
    fields = content("/proc/%d/stat" % process).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None


def text(value):
    """A str; pynvml before 11.5 gives bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- files in /run: they are lost at a reboot, as the limits are


@contextlib.contextmanager
def at_work(wait_s):
    """Holds the lock: two runs with different configurations would undo each other's work. Raises TimeoutError."""
    if not os.path.isdir(RUN):
        os.makedirs(RUN, exist_ok=True)
        os.chmod(RUN, 0o755)
    lock = os.open(RUN + "/limits.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("another gpu_limits.py has been at work for %g s" % wait_s) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def content(path):
    """The text of a file; empty when it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def put(path, whole, mode=0o644):
    """Replaces a file atomically. Only inside at_work."""
    with open(path + ".new", "w") as file:
        file.write(whole)
        os.fchmod(file.fileno(), mode)
    os.rename(path + ".new", path)


def last_state():
    """The state of the last run: {"said": {message: times in a row}, "stuck": {name: [process, its start]}}."""
    state = {"said": {}, "stuck": {}}
    with contextlib.suppress(ValueError):
        state.update(json.loads(content(MEMORY)))
    return state


def boot_id():
    return content(ROOT + "/proc/sys/kernel/random/boot_id").strip() or "-"


def driver_load():
    """An identifier of this load of the driver: the inode of its folder in /sys; `-` while no driver is loaded.

    The folder's times change: the kernel sets them when the folder is first read, and again after a dropped cache.
    """
    try:
        return str(os.stat(MODULE).st_ino)
    except OSError:
        return "-"


def locks_in_force():
    """The recorded locks of this boot and driver load: UUID -> {"locked_graphics_mhz": [min, max]}."""
    locks, now = {}, [boot_id(), driver_load(), "0"]
    for line in content(RECORD).splitlines():
        words = line.split()
        if len(words) == 7 and words[4:] == now and words[2].isdigit() and words[3].isdigit():
            locks.setdefault(words[0], {})["locked_%s_mhz" % words[1]] = [int(words[2]), int(words[3])]
    return locks


def write_locks(uuid, locks):
    """Records each kind of lock in `locks`, or removes its line when the value is None. Only inside at_work."""
    kinds = {key.split("_")[1]: value for key, value in locks.items()}
    lines = content(RECORD).splitlines()
    kept = [line for line in lines if line.split()[:2] not in [[uuid, kind] for kind in kinds]]
    for kind, value in sorted(kinds.items()):
        if value:
            kept.append("%s %s %d %d %s %s 0" % (uuid, kind, value[0], value[1], boot_id(), driver_load()))
    if kept != lines:
        put(RECORD, "".join(line + "\n" for line in sorted(kept)))


# --- reading a GPU (in the child process)


def overview():
    return {
        "count": pynvml.nvmlDeviceGetCount(),
        "driver_version": text(pynvml.nvmlSystemGetDriverVersion()),
        "nvml_version": text(pynvml.nvmlSystemGetNVMLVersion()),
    }


def clocks(getter, handle):
    return {"memory_mhz": getter(handle, 2), "graphics_mhz": getter(handle, 0)}  # NVML's clock domains


def supported_clocks(handle):
    """Memory clock -> graphics clocks. The driver lists them also where application clocks cannot be set."""
    memory = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
    return {str(mhz): list(pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, mhz)) for mhz in memory}


# The fields of nvmlDeviceGetFieldValues that `nvidia-smi nvlink` reads; all but the first are of a link.
LINK_COUNT, LINK_REPLAYS, LINK_RECOVERIES, LINK_CRCS, LINK_SPEED, LINK_STATE = 91, 161, 162, 163, 164, 165


def field_values(handle, numbers, link=0):
    """The values of fields of a GPU or a link; None for a field that it does not have. Raises NVMLError."""
    values = []
    for answer in pynvml.nvmlDeviceGetFieldValues(handle, [(number, link) for number in numbers]):
        if answer.nvmlReturn not in (0, 3):  # done, not supported
            raise pynvml.NVMLError(answer.nvmlReturn)
        value = {1: answer.value.uiVal, 2: answer.value.ulVal, 3: answer.value.ullVal}.get(answer.valueType)
        values.append(None if answer.nvmlReturn else value)
    return values


def nvlinks(handle):
    """The GPU's ends of its NVLinks, [] for a GPU without: {"link": 0, "mb_s": 25781, "peer": "00000000:07:00.0",
    "errors": 0}.

    mb_s is the speed of one direction, None for a link that is down; peer the bus id of the GPU or switch at its other
    end, None if it is not known; errors the sum of its replays, recoveries and CRC errors, None without a counter. With
    MIG on a GPU has no links, as for nvidia-smi of 590. Raises NVMLError.
    """
    with contextlib.suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
    count = field_values(handle, [LINK_COUNT])[0]
    return [nvlink(handle, link) for link in range(count or 0)]  # None: it has no NVLinks


def nvlink(handle, link):
    """One end, as nvlinks() returns it. Raises NVMLError, also if the driver does not report its state or speed."""
    up, mb_s, *errors = field_values(handle, [LINK_STATE, LINK_SPEED, LINK_REPLAYS, LINK_RECOVERIES, LINK_CRCS], link)
    if up is None or (up and not mb_s):
        raise pynvml.NVMLError(3)
    known = [count for count in errors if count is not None] if up else []
    peer = None
    if up:
        with contextlib.suppress(pynvml.NVMLError):
            peer = text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    return {"link": link, "mb_s": mb_s if up else None, "peer": peer, "errors": sum(known) if known else None}


IDENTITY = {
    "uuid": lambda handle: text(pynvml.nvmlDeviceGetUUID(handle)),
    "pci_bus_id": lambda handle: text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "name": lambda handle: text(pynvml.nvmlDeviceGetName(handle)),
}
STATE = {
    "persistence": lambda handle: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
    "power_limit_default_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
    "power_limit_min_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[0] / 1000,
    "power_limit_max_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] / 1000,
    "application_clocks": lambda handle: clocks(pynvml.nvmlDeviceGetApplicationsClock, handle),
    "default_application_clocks": lambda handle: clocks(pynvml.nvmlDeviceGetDefaultApplicationsClock, handle),
    "supported_application_clocks": supported_clocks,
    "clocks": lambda handle: clocks(pynvml.nvmlDeviceGetClockInfo, handle),
    "nvlinks": nvlinks,
}
LOCKS = ("locked_graphics_mhz", "locked_memory_mhz")


def identity(index, handle):
    return dict({"index": index}, **{field: read(handle) for field, read in IDENTITY.items()})


def state(index):
    """All values that show prints of a GPU. One that cannot be read is None, with the reason under errors."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = {"index": index, "errors": {}}
    for field, read in dict(IDENTITY, **STATE).items():
        try:
            gpu[field] = read(handle)
        except pynvml.NVMLError as error:
            gpu[field] = None
            gpu["errors"][field] = text(str(error))
    return gpu


def persistent(handle):
    """Whether settings outlive the last client. True for a GPU that does not report persistence."""
    try:
        return STATE["persistence"](handle)
    except pynvml.NVMLError:
        return True


# --- setting (in the child process): each function returns a text of what it changed, or None


def ensure(handle, key, wanted, write, *arguments, unit=""):
    """Calls write(handle, *arguments) only if another value is read, and reads it again. Raises Refused if that is
    another value."""
    before = STATE[key](handle)
    if before == wanted:
        return None
    write(handle, *arguments)
    after = STATE[key](handle)
    if after != wanted:
        raise Refused("set to %s%s, reads %s%s" % (plain(wanted), unit, plain(after), unit))
    return "%s -> %s%s" % (plain(before), plain(wanted), unit)


def plain(value):
    if isinstance(value, dict):
        return "%(memory_mhz)d,%(graphics_mhz)d" % value
    if isinstance(value, list):
        return "%d-%d" % tuple(value)
    return ("on" if value else "off") if isinstance(value, bool) else "%g" % value


def set_power_limit(handle, watts):
    low, high = STATE["power_limit_min_w"](handle), STATE["power_limit_max_w"](handle)
    if not low <= watts <= high:
        nearest = low if watts < low else high
        raise Refused("%g W is not between %g and %g W: power_limit_w: %g is the nearest" % (watts, low, high, nearest))
    write = pynvml.nvmlDeviceSetPowerManagementLimit
    return ensure(handle, "power_limit_w", watts, write, round(watts * 1000), unit=" W")


def set_application_clocks(handle, wanted):
    memory, graphics = wanted["memory_mhz"], wanted["graphics_mhz"]
    try:
        STATE["application_clocks"](handle)
    except pynvml.NVMLError as error:
        if error.value in WITHOUT:
            return None  # left out: rigwright's plan and verify say so
        raise
    listed = supported_clocks(handle)
    of_memory = listed.get(str(memory), [])
    if graphics not in of_memory:
        near = sorted(of_memory, key=lambda mhz: abs(mhz - graphics))[:2]
        hint = "near it: %s" % ", ".join(map(str, near)) if near else "memory clocks: %s" % ", ".join(listed)
        raise Refused("%d,%d MHz is no supported pair (%s)" % (memory, graphics, hint))
    write = pynvml.nvmlDeviceSetApplicationsClocks
    return ensure(handle, "application_clocks", wanted, write, memory, graphics, unit=" MHz")


def set_locked(key, handle, wanted):
    mhz = []
    with contextlib.suppress(pynvml.NVMLError):  # without a list only the driver checks the range
        listed = supported_clocks(handle)
        graphics = [clock for clocks_mhz in listed.values() for clock in clocks_mhz]
        mhz = [int(clock) for clock in listed] if key == "locked_memory_mhz" else graphics
    if mhz and not min(mhz) <= wanted[0] <= wanted[1] <= max(mhz):
        nearest = [min(max(limit, min(mhz)), max(mhz)) for limit in wanted]
        found = (plain(wanted), min(mhz), max(mhz), key, nearest)
        raise Refused("%s MHz is not within %d to %d MHz: %s: %s is the nearest" % found)
    if key == "locked_memory_mhz":
        pynvml.nvmlDeviceSetMemoryLockedClocks(handle, *wanted)
    else:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, *wanted)
    kept = "set, not readable" if persistent(handle) else "lost with its last client, as persistence is off"
    return "to %s MHz (%s)" % (plain(wanted), kept)


def reset_application_clocks(handle, _):
    default, write = STATE["default_application_clocks"](handle), pynvml.nvmlDeviceResetApplicationsClocks
    return ensure(handle, "application_clocks", default, write, unit=" MHz")


STEPS = [  # persistence first: values that are set without it are lost with the last client
    (
        "persistence",
        "persistence",
        lambda handle, on: ensure(handle, "persistence", on, pynvml.nvmlDeviceSetPersistenceMode, int(on)),
    ),
    ("power_limit_w", "power limit", set_power_limit),
    ("application_clocks", "application clocks", set_application_clocks),
    ("locked_graphics_mhz", "locked graphics clock", functools.partial(set_locked, "locked_graphics_mhz")),
    ("locked_memory_mhz", "locked memory clock", functools.partial(set_locked, "locked_memory_mhz")),
]
RESETS = [
    (
        "power_limit_w",
        "power limit",
        lambda handle, _: set_power_limit(handle, STATE["power_limit_default_w"](handle)),
    ),
    ("application_clocks", "application clocks", reset_application_clocks),
    ("locked_graphics_mhz", "locked graphics clock", lambda handle, _: pynvml.nvmlDeviceResetGpuLockedClocks(handle)),
    ("locked_memory_mhz", "locked memory clock", lambda handle, _: pynvml.nvmlDeviceResetMemoryLockedClocks(handle)),
]


def take(steps, handle, bus_id, may_lack=()):
    """Takes every step (key, subject, function, value), also after a refusal; stops when the GPU is lost.

    Returns texts of what was done and refused, and the keys of the steps that were not refused.
    """
    done, refused, taken = [], [], []
    for key, subject, function, value in steps:
        try:
            change = function(handle, value)
            done += ["%s %s" % (subject, change)] if change else []
            taken.append(key)
        except Refused as error:
            refused.append("%s: %s" % (subject, error))
        except AttributeError as error:
            refused.append("%s: pynvml.py beside this program is too old for it (%s)" % (subject, error))
        except pynvml.NVMLError as error:
            if error.value in may_lack:
                taken.append(key)
                continue
            refused.append("%s: %s" % (subject, in_words(text(str(error)), error.value, bus_id, key)))
            if error.value in LOST:
                break
    return {"done": done, "refused": refused, "taken": taken}


def in_words(error, code, bus_id="", key="it"):
    """NVML's message, with the fix where there is one."""
    return error + ("; " + FIXES[code].format(bus_id=bus_id, key=key) if code in FIXES else "")


DEFAULTS = {
    "persistence": lambda _: False,
    "power_limit_w": STATE["power_limit_default_w"],
    "application_clocks": STATE["default_application_clocks"],
}
UNITS = {"persistence": "", "power_limit_w": " W"}


def look(handle, rule, locks, bus_id):
    """Texts of each part of the rule that is not in force: `forgotten`, `decided`, or `refused` if it cannot be read.

    A value that equals the GPU's default was forgotten: after a reset, a load of the driver, or a boot. Any other value
    was set by somebody (decided). Locks are known from the record; a clock above its lock shows that the lock was lost.
    """
    seen = {"forgotten": [], "decided": [], "refused": []}
    for key, subject, _ in STEPS:
        if key not in rule:
            continue
        wanted, unit = rule[key], UNITS.get(key, " MHz")
        try:
            now = locks.get(key) if key in LOCKS else STATE[key](handle)
            if key in LOCKS and now is None:
                seen["forgotten"].append("no %s on record" % subject)
            elif key in LOCKS and now == wanted:
                runs = STATE["clocks"](handle)[key.replace("locked_", "")]
                if runs > wanted[1] + 30:  # more than rounding to a clock step explains
                    seen["forgotten"].append("%s: runs above %d MHz" % (subject, wanted[1]))
            elif key not in LOCKS and now != wanted and now == DEFAULTS[key](handle):
                default = "%s %s%s is the default" % (subject, plain(now), unit)
                seen["forgotten"].append("persistence is off" if key == "persistence" else default)
            elif now != wanted:
                seen["decided"].append("%s %s%s, wanted %s%s" % (subject, plain(now), unit, plain(wanted), unit))
        except pynvml.NVMLError as error:
            if key == "application_clocks" and error.value in WITHOUT:
                continue
            seen["refused"].append("%s: %s" % (subject, in_words(text(str(error)), error.value, bus_id, key)))
            if error.value in LOST:
                break
    return seen


def settle(index, config, record, settled=(), only_forgotten=False):
    """Apply the GPU's rule; with `only_forgotten` only if the GPU forgot a part of it.

    A recorded lock is not set again, unless the GPU forgot something: a reset removes the lock and leaves the record.
    """
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = identity(index, handle)
    if gpu["uuid"] in settled:
        return gpu
    rule = rule_for(gpu, config)
    if rule is None:
        return dict(gpu, done=["no rule for it, left alone"], forgotten=[], decided=[], refused=[])
    bus_id = short(gpu["pci_bus_id"])
    locks = record.get(gpu["uuid"], {}) if persistent(handle) else {}
    seen = look(handle, rule, locks, bus_id)
    if only_forgotten and not seen["forgotten"]:
        return dict(gpu, done=[], **seen)
    held = [key for key in LOCKS if key in rule and locks.get(key) == rule[key] and not seen["forgotten"]]
    steps = [(key, subject, step, rule[key]) for key, subject, step in STEPS if key in rule and key not in held]
    taken = take(steps, handle, bus_id)
    kept = persistent(handle)
    lost = {key: None for key in LOCKS if seen["forgotten"]}
    locked = dict(lost, **{key: rule[key] if kept else None for key in LOCKS if key in taken["taken"]})
    return dict(gpu, forgotten=seen["forgotten"], decided=[], locked=locked, **taken)


def reset_gpu(index):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = identity(index, handle)
    steps = [(key, subject, step, None) for key, subject, step in RESETS]
    gpu.update(take(steps, handle, short(gpu["pci_bus_id"]), may_lack=(3, 13)))
    return dict(gpu, locked={key: None for key in LOCKS if key in gpu["taken"]})


# --- the configuration, and the names of GPUs in messages


def rule_for(gpu, config):
    """The first rule that matches the GPU; None when no rule does."""
    for rule in config["gpus"]:
        match = rule.get("match", {})
        if "uuid" in match and match["uuid"].lower() != gpu["uuid"].lower():
            continue
        if "pci_bus_id" in match and bus_numbers(match["pci_bus_id"]) != bus_numbers(gpu["pci_bus_id"]):
            continue
        return rule
    return None


def bus_numbers(bus_id):
    """The same for 00000000:0A:00.0, 0000:0a:00.0 and 0a:00.0."""
    parts = [int(part, 16) for part in re.split("[:.]", bus_id)]
    return [0] * (4 - len(parts)) + parts


def short(bus_id):
    return "%04x:%02x:%02x.%x" % tuple(bus_numbers(bus_id))


def place(bus_id, config):
    """`SXM2-1 0000:06:00.0`; only the bus id when the position has no name."""
    named = {short(named_id): position for named_id, position in config.get("positions", {}).items()}
    return ("%s %s" % (named.get(short(bus_id), ""), short(bus_id))).strip()


def title(gpu, config):
    """The name of a GPU in messages: its place, the begin of its UUID, its model."""
    return "%s %s %s" % (place(gpu["pci_bus_id"], config), gpu["uuid"][:12], gpu["name"])


def places(count, gpus, config):
    """Names for GPUs that do not report their bus id, by name in ask_all.

    NVML counts GPUs in the order of their bus ids. So a GPU between two that answered has a bus id between theirs: from
    the driver's own list, or from the positions. If their number does not match, the GPU is named by its number.
    """
    answered = {gpu["index"]: bus_numbers(gpu["pci_bus_id"]) for gpu in gpus}
    try:
        bound = os.listdir(ROOT + "/proc/driver/nvidia/gpus")
    except OSError:
        bound = []
    names = {}
    for index in range(count):
        before = max((number for number in answered if number < index), default=-1)
        after = min((number for number in answered if number > index), default=count)
        low, high = answered.get(before, []), answered.get(after, [1 << 32])
        for known in (bound, config.get("positions", {})):
            between = [bus_id for bus_id in sorted(known, key=bus_numbers) if low < bus_numbers(bus_id) < high]
            if len(between) == after - before - 1:
                names.setdefault("GPU %d" % index, place(between[index - before - 1], config))
        names.setdefault("GPU %d" % index, "number %d of the GPUs by bus id" % (index + 1))
    return names


def mhz_range(value):
    return isinstance(value, list) and len(value) == 2 and all(map(whole, value)) and 0 < value[0] <= value[1]


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def clock_pair(value):
    return isinstance(value, dict) and set(value) == {"memory_mhz", "graphics_mhz"} and all(map(whole, value.values()))


RULE = {  # key -> (expected value, test)
    "persistence": ("true or false", lambda value: isinstance(value, bool)),
    "power_limit_w": ("a number of watts", lambda value: whole(value) or isinstance(value, float)),
    "application_clocks": ("{memory_mhz, graphics_mhz}, whole numbers", clock_pair),
    "locked_graphics_mhz": ("[min, max], whole numbers", mhz_range),
    "locked_memory_mhz": ("[min, max], whole numbers", mhz_range),
}


def mistakes(config):
    """A text for each mistake in a configuration."""
    yield from ("unknown key: %s" % key for key in sorted(set(config) - {"gpus", "expected_gpus", "positions"}))
    for bus_id in config.get("positions", {}):
        bus_numbers(bus_id)
    for rule in config["gpus"]:
        match = rule.get("match", {})
        bus_numbers(match.get("pci_bus_id", "0"))
        unknown = set(rule) - set(RULE) - {"match"} | set(match) - {"uuid", "pci_bus_id"}
        yield from ("unknown key: %s" % key for key in sorted(unknown))
        for key, (wanted, right) in RULE.items():
            if key in rule and not right(rule[key]):
                yield "%s: %s is not %s" % (key, json.dumps(rule[key]), wanted)


def load_config(path):
    """Reads and checks the configuration. A mistake ends the program."""
    try:
        with open(path) as file:
            config = json.load(file)
        wrong = "; ".join(mistakes(config))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = "%s: %s" % (type(error).__name__, error)
    if wrong:
        sys.exit("%s: %s" % (path, wrong))
    return config


# --- the commands


def report(gpu, config):
    """Prints one line of what was done, and what was refused on stderr. True when nothing was refused."""
    done = "; ".join(gpu["done"]) or ("nothing changed" if gpu["refused"] else "as wanted, nothing to change")
    print("%s: %s" % (title(gpu, config), done), flush=True)
    for line in gpu["refused"]:
        complain("%s: refused: %s" % (title(gpu, config), line))
    return not gpu["refused"]


def complain(line):
    print(line, file=sys.stderr, flush=True)


def is_final(answer):
    """Whether waiting cannot change this answer."""
    return answer["code"] in FINAL or "hangs" in answer


def status_of(answer):
    """The exit status for a GPU that gave no values."""
    return ABSENT if answer["code"] in LOST or "hangs" in answer else 1


def note_locks(answer):
    """Records the locks of one answer."""
    gpu = answer.get("value", {})
    if gpu.get("locked"):
        write_locks(gpu["uuid"], gpu["locked"])


def missing_gpus(config, gpus, count, silent):
    """A text for each GPU that is expected, or named by a rule, and missing. `silent`: names of silent GPUs."""
    lines, lacking, expected = [], [], config.get("expected_gpus", 1)
    answering = [place(gpu["pci_bus_id"], config) for gpu in gpus]
    if count < expected:
        known = [place(bus_id, config) for bus_id in sorted(config.get("positions", {}), key=bus_numbers)]
        lacking = [one for one in known if one not in answering + silent]
        missing = ", missing: %s" % ", ".join(lacking) if lacking else ""
        lines.append("%d of %d expected GPUs present%s" % (count, expected, missing))
    named = [rule["match"] for rule in config["gpus"] if rule.get("match")]
    nobody = [match for match in named if not any(rule_for(gpu, {"gpus": [{"match": match}]}) for gpu in gpus)]
    bus_ids = [place(match["pci_bus_id"], config) for match in nobody if "pci_bus_id" in match]
    uuids = [match["uuid"] for match in nobody if "pci_bus_id" not in match]
    nobody = [one for one in bus_ids if one not in lacking + silent]
    nobody += uuids if len(uuids) > len(silent) else []  # a silent GPU does not report its UUID
    return lines + ["no GPU answers to %s" % one for one in nobody]


def ask_gpus(task, config, timeout_s, stuck, skip=(), heard=None):
    """Runs task(index) for every GPU but those in `skip`, each in its own process.

    Returns the overview of the driver, the answers and the names of GPUs in messages; both by `GPU INDEX`. Raises
    Refused if the driver does not answer; its second argument is the answer.
    """
    driver = ask_all({"driver": overview}, timeout_s, stuck)["driver"]
    if "error" in driver:
        raise Refused("driver: " + in_words(driver["error"], driver["code"]), driver)
    names = ["GPU %d" % index for index in range(driver["value"]["count"])]
    tasks = {name: functools.partial(task, index) for index, name in enumerate(names) if name not in skip}
    answers = ask_all(tasks, timeout_s, stuck, heard)
    answered = [answer["value"] for answer in answers.values() if "value" in answer]
    return driver["value"], answers, places(len(names), answered, config)


def ask_at_once(task, config, timeout_s, stuck):
    """As ask_gpus, in one process, which starts NVML once; as ask_gpus if a GPU is slow, or a process is stuck."""

    def every():
        driver = overview()
        return {"driver": driver, "gpus": [task(index) for index in range(driver["count"])]}

    answer = None if stuck else ask_all({"all": every}, min(8, timeout_s / 2), {})["all"].get("value")
    if answer is None:
        return ask_gpus(task, config, timeout_s, stuck)
    answers = {"GPU %d" % index: {"value": gpu} for index, gpu in enumerate(answer["gpus"])}
    return answer["driver"], answers, places(len(answers), answer["gpus"], config)


def one_round(config, settled, hopeless, timeout_s):
    """Sets the limits of every GPU that answers. Returns the reasons to try again: pairs of exit status and text."""
    stuck = last_state()["stuck"]
    waiting = []
    try:
        task = functools.partial(settle, config=config, record=locks_in_force(), settled=list(settled))
        driver, answers, names = ask_gpus(task, config, timeout_s, stuck, hopeless, note_locks)
    except Refused as error:
        if is_final(error.args[1]):
            hopeless["driver"] = (1, error.args[0])
        else:
            waiting.append((1, error.args[0]))
        driver, answers, names = None, {}, {}
    for name, answer in answers.items():
        if "error" in answer:
            failure = (status_of(answer), failure_of(answer, names[name]))
            if is_final(answer):
                hopeless[name] = failure
            else:
                waiting.append(failure)
        elif answer["value"]["uuid"] not in settled:
            settled[answer["value"]["uuid"]] = dict(answer["value"], good=report(answer["value"], config))
    if driver:
        silent = [names[name] for name in hopeless if name in names]
        waiting += [(ABSENT, line) for line in missing_gpus(config, settled.values(), driver["count"], silent)]
    put(MEMORY, json.dumps({"stuck": stuck}))
    return waiting


def failure_of(answer, name):
    """The message for a GPU that gave an error."""
    bus_id = name.split()[-1] if ":" in name else "ITS_BUS_ID"
    return "%s: %s" % (name, in_words(answer["error"], answer["code"], bus_id))


def apply(path, wait_s, timeout_s):
    """Sets the limits of each GPU as soon as it answers, until all are present or the time is over; exit status."""
    deadline = time.monotonic() + wait_s
    settled, hopeless = {}, {}  # by UUID: the GPU and what was done; by name: exit status and text
    while True:
        with at_work(120):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(RESTS)
            waiting = one_round(load_config(path), settled, hopeless, timeout_s)
        if not waiting or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    failures = [failure for _, failure in sorted(hopeless.items())] + waiting
    for _, line in failures:
        complain(line)
    refused = [1 for gpu in settled.values() if not gpu["good"]]
    return min([status for status, _ in failures] + refused, default=0)


def watch(path, timeout_s):
    """Apply the rule of each GPU that forgot a part of it, and print messages that are new. Returns the exit status."""
    with at_work(0):
        if os.path.exists(RESTS):
            return 0
        config, last = load_config(path), last_state()
        lines = one_look(config, last["stuck"], timeout_s)
        times = {line: last["said"].get(line, 0) + 1 for _, line in lines}  # in a row
        for bad, line in lines:
            # a state is printed once; an event is printed each time, three times in a row at most
            most = 3 if ": forgotten (" in line else 1
            if times[line] <= most:
                more = " (at each of %d looks, said no more)" % most if times[line] == most > 1 else ""
                print(line + more, file=sys.stderr if bad else sys.stdout, flush=True)
        put(MEMORY, json.dumps({"said": times, "stuck": last["stuck"]}))
    return 1 if any(bad for bad, _ in lines) else 0


def one_look(config, stuck, timeout_s):
    """The messages of one check: pairs of whether it is a failure, and the text."""
    if driver_load() == "-":  # NVML would load it again while somebody works without it
        return [(False, "the driver is not loaded: nothing to look at")]
    try:
        task = functools.partial(settle, config=config, record=locks_in_force(), only_forgotten=True)
        driver, answers, names = ask_gpus(task, config, timeout_s, stuck, heard=note_locks)
    except Refused as error:
        return [(True, error.args[0])]
    gpus = [answer["value"] for answer in answers.values() if "value" in answer]
    silent = {names[name]: failure_of(answer, names[name]) for name, answer in answers.items() if "error" in answer}
    lines = [(True, line) for line in [*silent.values(), *missing_gpus(config, gpus, driver["count"], [*silent])]]
    for gpu in gpus:
        name, done = title(gpu, config), "; ".join(gpu["done"])
        if gpu["forgotten"]:
            forgotten = "; ".join(gpu["forgotten"])
            lines.append((False, "%s: forgotten (%s): %s" % (name, forgotten, done or "not repaired")))
        elif done:
            lines.append((False, "%s: %s" % (name, done)))
        lines += [(True, "%s: refused: %s" % (name, text)) for text in gpu["refused"]]
        lines += [(False, "%s: drift: %s; left alone" % (name, text)) for text in gpu["decided"]]
    return lines


def show(config, timeout_s):
    """Prints the document; with a configuration each GPU has its rule under `wanted`. Returns the exit status."""
    document, record = {"driver_version": None, "nvml_version": None, "gpus": []}, locks_in_force()
    try:
        driver, answers, names = ask_at_once(state, config or {}, timeout_s, last_state()["stuck"])
        document.update({key: driver[key] for key in ("driver_version", "nvml_version")})
    except Refused as error:
        document["errors"] = {"driver": error.args[1]["error"]}
        complain(error.args[0])
        answers, names = {}, {}
    for index, (name, answer) in enumerate(answers.items()):
        gpu = answer.get("value")
        if gpu is None:  # code: NVML's number of the error; hangs: it did not answer in time
            gpu = dict(dict.fromkeys(dict(IDENTITY, **STATE)), index=index, errors={"gpu": answer["error"]})
            gpu.update(code=answer["code"], hangs="hangs" in answer)
        known = gpu["uuid"] and gpu["pci_bus_id"]
        gpu["place"] = place(gpu["pci_bus_id"], config or {}) if known else names[name]
        locks = record.get(gpu["uuid"], {}) if gpu["persistence"] is not False else {}
        gpu.update({key: locks.get(key) for key in LOCKS}, locked_clocks_readable=False)
        if config:
            gpu["wanted"] = rule_for(gpu, config) if known else None
        document["gpus"].append(gpu)
    if config:
        document["expected_gpus"] = config.get("expected_gpus")
    print(json.dumps(document))
    return 1 if "errors" in document else 0


def reset(config, timeout_s):
    """Sets power limit and clocks of every GPU to its defaults; watch pauses until the next apply. Exit status."""
    with at_work(120):
        stuck = last_state()["stuck"]
        put(RESTS, "")
        try:
            _, answers, names = ask_gpus(reset_gpu, config, timeout_s, stuck, heard=note_locks)
        except Refused as error:
            complain(error.args[0])
            return 1
        put(MEMORY, json.dumps({"stuck": stuck}))
    statuses = []
    for name, answer in answers.items():
        if "error" in answer:
            complain(failure_of(answer, names[name]))
            statuses.append(status_of(answer))
        elif not report(answer["value"], config):
            statuses.append(1)
    return min(statuses, default=0)


def main():
    import argparse  # takes a fifth of the time of show, which rigwright calls without words

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["apply", "watch", "show", "reset"])
    parser.add_argument("--config", help="the wanted limits; apply and watch take %s when not given" % CONFIG)
    parser.add_argument("--wait-s", type=float, default=120, help="apply: how long to wait for GPUs that are not there")
    parser.add_argument("--gpu-timeout-s", type=float, help="how long one GPU may take (60; show, watch: 20)")
    options = parser.parse_args()
    timeout_s = options.gpu_timeout_s or (SHOW_S if options.command in ("show", "watch") else 60)
    if options.command == "show":
        return show(load_config(options.config) if options.config else None, timeout_s)
    if os.geteuid():
        sys.exit("%s wants root: sudo %s" % (options.command, " ".join(sys.argv)))
    try:
        if options.command == "apply":
            return apply(options.config or CONFIG, options.wait_s, timeout_s)
        if options.command == "watch":
            return watch(options.config or CONFIG, timeout_s)
        return reset(load_config(options.config) if options.config else {}, timeout_s)
    except OSError as error:
        if options.command == "watch" and isinstance(error, TimeoutError):
            return 0  # another run holds the lock, and watch runs again in a minute
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
