#!/usr/bin/env python3
"""Put the wanted persistence, power limit and clocks on every GPU of this machine, and keep them there.

    gpu_limits.py apply [--config FILE] [--wait-s 120]   at boot from gpu-limits.service, or by hand
    gpu_limits.py watch [--config FILE]                  each minute from gpu-limits.timer: GPUs that forgot get theirs again
    gpu_limits.py show [--config FILE]                   one JSON document of what is in force
    gpu_limits.py reset                                  power and clocks back to the GPU's defaults, until the next apply

Needs root (but for show), Python 3.8 and pynvml.py of nvidia-ml-py beside this file. Exit status: 0 all is as wanted
(or somebody's decision that watch leaves alone), 1 something is not (named on stderr; the other GPUs are done all the
same), 2 wrong usage. Out of a checkout on the machine itself: sudo scripts/gpu_limits.py show.

The configuration: {"expected_gpus": 4, "positions": {"0000:06:00.0": "SXM2-1"}, "gpus": [{"match": {"uuid": "GPU-..."},
"persistence": true, "power_limit_w": 200, "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
"locked_graphics_mhz": [210, 1400], "locked_memory_mhz": [405, 9501]}]}. A GPU takes the first rule that matches; match
is {"uuid": ...}, {"pci_bus_id": ...} or {} for any. What is left out is left alone.

No driver tells which clocks are locked. So every lock that a driver took is a line in /run/rigwright/locked-clocks:
UUID graphics|memory MIN MAX BOOT_ID LOAD CODE. It holds as long as boot and load of the driver are still the same.

A lost GPU can block the kernel call of whoever asks it, for ever and even against kill. So each GPU is asked in a
process of its own that holds nothing of ours open, and one that does not answer in time is given up, not waited for.
"""

import argparse
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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import pynvml
except ImportError:
    sys.exit("there is no pynvml.py (of nvidia-ml-py) beside %s: invoke provision puts it there" % __file__)

ROOT = os.environ.get("RIGWRIGHT_ROOT", "")  # tests keep their /etc, /run, /sys and /proc in a folder
CONFIG = ROOT + "/etc/rigwright/limits.json"
RUN = ROOT + "/run/rigwright"
RECORD = RUN + "/locked-clocks"
MEMORY = RUN + "/limits-drift"  # what watch said last, and who hangs; JSON
RESTS = RUN + "/limits-rest"  # is there after reset: watch does nothing; rigwright looks for it
MODULE = ROOT + "/sys/module/nvidia"
FINAL = {4, 12, 15, 16, 18}  # no permission, no library, GPU lost, reset needed, wrong library: waiting mends none
LOST = {15, 16}
FIXES = {  # NVML's codes, and what to do
    3: "this GPU cannot do it: take {key} out of its limits",
    4: "it wants root: sudo systemctl restart gpu-limits.service",
    9: "is it installed and built? sudo modprobe nvidia; journalctl -k -g NVRM",
    13: "the driver is too old for it: take {key} out of its limits",
    15: "it fell off the bus: journalctl -k -g Xid; then power the machine off and on",
    16: "sudo nvidia-smi --gpu-reset -i {bus_id}, or power the machine off and on",
    18: "the driver was upgraded and not yet loaded: reboot",
    26: "this driver has it no longer: take {key} out of its limits (locked_graphics_mhz is in its place)",
}


class Refused(Exception):
    """A GPU that does not do what is wanted, in words for the journal."""


# --- each GPU in a process of its own


def ask_all(tasks, timeout_s, stuck, heard=None):
    """Run the functions (by name) side by side, each in its own process; their answers by the same names.

    An answer is {"value": what the function returned} or {"error": text, "code": NVML's number or None}; heard(answer)
    is called as each comes. A name in `stuck`, whose process of an earlier time still hangs in the kernel, is not asked
    again; one that begins to hang is added.
    """
    answers, running = {}, {}  # running: read end of the pipe -> (name, process, parts of the answer)
    for name, task in tasks.items():
        if name in stuck and started(stuck[name][0]) == stuck[name][1]:
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
                answers[name] = parsed(b"".join(parts))
                if heard:
                    heard(answers[name])
                os.close(end)
                os.waitpid(process, 0)
                del running[end]
    for end, (name, process, _) in running.items():
        os.kill(process, signal.SIGKILL)
        os.close(end)
        if not died(process):
            stuck[name] = [process, started(process)]
    return answers


def answer_and_exit(task, write_end):
    """In the child: let go of all that whoever started us has open, ask, write the answer, end at once."""
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


def parsed(data):
    try:
        return json.loads(data.decode())
    except ValueError:
        return {"error": "the process that asked it died", "code": None}


def died(process, within_s=0.5):
    """Whether the killed child is gone; not waited for when it hangs in the kernel."""
    deadline = time.monotonic() + within_s
    while not os.waitpid(process, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def started(process):
    """When the process started, as the kernel counts; None when there is none."""
    fields = content("/proc/%d/stat" % process).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None


def text(value):
    """str, also of the bytes that pynvml gave before 11.5."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- what is kept in /run: gone with the boot, as the limits are


@contextlib.contextmanager
def at_work(wait_s):
    """One of us at a time: two with different configurations would undo each other's work. Raises TimeoutError."""
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
    """The text of a file, empty when there is none."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def put(path, whole):
    """The file has this text, at once and whole. Only at_work."""
    with open(path + ".new", "w") as file:
        file.write(whole)
        os.fchmod(file.fileno(), 0o644)
    os.rename(path + ".new", path)


def remembered():
    """What the last look left: {"said": {line: times}, "stuck": {who: [process, its start]}}."""
    kept = {"said": {}, "stuck": {}}
    with contextlib.suppress(ValueError):
        kept.update(json.loads(content(MEMORY)))
    return kept


def boot_id():
    return content(ROOT + "/proc/sys/kernel/random/boot_id").strip() or "-"


def driver_load():
    """What is another with every load of the driver, `-` while none is loaded: the inode of its folder in /sys.

    Not the folder's times: they are when the kernel was first asked for it, and again after its cache was dropped.
    """
    try:
        return str(os.stat(MODULE).st_ino)
    except OSError:
        return "-"


def locks_in_force():
    """UUID -> {"locked_graphics_mhz": [min, max]} of what was locked since the driver was loaded."""
    found, now = {}, [boot_id(), driver_load(), "0"]
    for line in content(RECORD).splitlines():
        words = line.split()
        if len(words) == 7 and words[4:] == now and words[2].isdigit() and words[3].isdigit():
            found.setdefault(words[0], {})["locked_%s_mhz" % words[1]] = [int(words[2]), int(words[3])]
    return found


def write_locks(uuid, locks):
    """Each kind of lock in `locks` has one line, or none when its value is None; the other lines stay. Only at_work."""
    kinds = {key.split("_")[1]: value for key, value in locks.items()}
    lines = content(RECORD).splitlines()
    kept = [line for line in lines if line.split()[:2] not in [[uuid, kind] for kind in kinds]]
    for kind, value in sorted(kinds.items()):
        if value:
            kept.append("%s %s %d %d %s %s 0" % (uuid, kind, value[0], value[1], boot_id(), driver_load()))
    if kept != lines:
        put(RECORD, "".join(line + "\n" for line in sorted(kept)))


# --- what a GPU is and has (in the child)


def overview():
    return {
        "count": pynvml.nvmlDeviceGetCount(),
        "driver_version": text(pynvml.nvmlSystemGetDriverVersion()),
        "nvml_version": text(pynvml.nvmlSystemGetNVMLVersion()),
    }


def clocks(getter, handle):
    return {"memory_mhz": getter(handle, 2), "graphics_mhz": getter(handle, 0)}  # NVML's clock domains


def supported_clocks(handle):
    """Memory clock -> graphics clocks as the driver lists them, also where application clocks cannot be set."""
    memory = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
    return {str(mhz): list(pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, mhz)) for mhz in memory}


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
}
LOCKS = ("locked_graphics_mhz", "locked_memory_mhz")


def identity(index, handle):
    return dict({"index": index}, **{field: read(handle) for field, read in IDENTITY.items()})


def state(index):
    """All that show prints of a GPU. A value that is not to be had is None and has its reason under errors."""
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
    """Whether what is set outlives the last client; a GPU that cannot tell is taken at its word."""
    try:
        return STATE["persistence"](handle)
    except pynvml.NVMLError:
        return True


# --- setting (in the child): each says what it did, None when nothing was to be done


def ensure(wanted, read, write, unit):
    """Write only what reads otherwise, and read it again: the driver's word counts, not ours."""
    before = read()
    if before == wanted:
        return None
    write()
    after = read()
    if after != wanted:
        raise Refused("set to %s%s, reads %s%s" % (plain(wanted), unit, plain(after), unit))
    return "%s -> %s%s" % (plain(before), plain(wanted), unit)


def plain(value):
    if isinstance(value, dict):
        return "%(memory_mhz)d,%(graphics_mhz)d" % value
    if isinstance(value, list):
        return "%d-%d" % tuple(value)
    return ("on" if value else "off") if isinstance(value, bool) else "%g" % value


def set_persistence(handle, wanted):
    read = functools.partial(STATE["persistence"], handle)
    return ensure(wanted, read, lambda: pynvml.nvmlDeviceSetPersistenceMode(handle, int(wanted)), "")


def set_power_limit(handle, watts):
    low, high = STATE["power_limit_min_w"](handle), STATE["power_limit_max_w"](handle)
    if not low <= watts <= high:
        nearest = low if watts < low else high
        raise Refused("%g W is not between %g and %g W: power_limit_w: %g is the nearest" % (watts, low, high, nearest))
    read = functools.partial(STATE["power_limit_w"], handle)
    return ensure(watts, read, lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1000)), " W")


def set_application_clocks(handle, wanted):
    memory, graphics = wanted["memory_mhz"], wanted["graphics_mhz"]
    read = functools.partial(STATE["application_clocks"], handle)
    read()  # a GPU without them says so here
    listed = supported_clocks(handle)
    if graphics not in listed.get(str(memory), []):
        near = sorted(listed.get(str(memory), []), key=lambda mhz: abs(mhz - graphics))[:2]
        hint = "near it: %s" % ", ".join(map(str, near)) if near else "memory clocks: %s" % ", ".join(listed)
        raise Refused("%d,%d MHz is no supported pair (%s)" % (memory, graphics, hint))
    return ensure(wanted, read, lambda: pynvml.nvmlDeviceSetApplicationsClocks(handle, memory, graphics), " MHz")


def set_locked(key, handle, wanted):
    mhz = []
    with contextlib.suppress(pynvml.NVMLError):  # without a list the driver alone decides
        listed = supported_clocks(handle)
        mhz = (
            [int(one) for one in listed]
            if key == "locked_memory_mhz"
            else [one for all in listed.values() for one in all]
        )
    if mhz and not min(mhz) <= wanted[0] <= wanted[1] <= max(mhz):
        nearest = [min(max(one, min(mhz)), max(mhz)) for one in wanted]
        found = (plain(wanted), min(mhz), max(mhz), key, nearest)
        raise Refused("%s MHz is not within %d to %d MHz: %s: %s is the nearest" % found)
    if key == "locked_memory_mhz":
        pynvml.nvmlDeviceSetMemoryLockedClocks(handle, *wanted)
    else:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, *wanted)
    kept = "set, not readable" if persistent(handle) else "lost with its last client, as persistence is off"
    return "to %s MHz (%s)" % (plain(wanted), kept)


def reset_power_limit(handle, _):
    return set_power_limit(handle, STATE["power_limit_default_w"](handle))


def reset_application_clocks(handle, _):
    default, read = STATE["default_application_clocks"](handle), functools.partial(STATE["application_clocks"], handle)
    return ensure(default, read, lambda: pynvml.nvmlDeviceResetApplicationsClocks(handle), " MHz")


STEPS = [  # in this order: what is set before persistence is on is lost with the last client
    ("persistence", "persistence", set_persistence),
    ("power_limit_w", "power limit", set_power_limit),
    ("application_clocks", "application clocks", set_application_clocks),
    ("locked_graphics_mhz", "locked graphics clock", functools.partial(set_locked, "locked_graphics_mhz")),
    ("locked_memory_mhz", "locked memory clock", functools.partial(set_locked, "locked_memory_mhz")),
]
RESETS = [
    ("power_limit_w", "power limit", reset_power_limit),
    ("application_clocks", "application clocks", reset_application_clocks),
    ("locked_graphics_mhz", "locked graphics clock", lambda handle, _: pynvml.nvmlDeviceResetGpuLockedClocks(handle)),
    ("locked_memory_mhz", "locked memory clock", lambda handle, _: pynvml.nvmlDeviceResetMemoryLockedClocks(handle)),
]


def take(steps, handle, bus_id, may_lack=()):
    """Take every step (key, subject, function, value), whatever becomes of the others but for a GPU that is lost.

    What was done and refused, in words, and the keys of the steps that were not refused.
    """
    done, refused, taken = [], [], []
    for key, subject, function, value in steps:
        try:
            said = function(handle, value)
            if said:
                done.append("%s %s" % (subject, said))
        except Refused as error:
            refused.append("%s: %s" % (subject, error))
            continue
        except AttributeError as error:
            refused.append("%s: pynvml.py beside this program is too old for it (%s)" % (subject, error))
            continue
        except pynvml.NVMLError as error:
            if error.value not in may_lack:
                refused.append("%s: %s" % (subject, in_words(text(str(error)), error.value, bus_id, key)))
                if error.value in LOST:
                    break
                continue
        taken.append(key)
    return {"done": done, "refused": refused, "taken": taken}


def in_words(error, code, bus_id="", key="it"):
    """What NVML said, and what to do about it."""
    return error + ("; " + FIXES[code].format(bus_id=bus_id, key=key) if code in FIXES else "")


DEFAULTS = {
    "persistence": lambda _: False,
    "power_limit_w": STATE["power_limit_default_w"],
    "application_clocks": STATE["default_application_clocks"],
}
UNITS = {"persistence": "", "power_limit_w": " W"}


def look(handle, rule, locks, bus_id):
    """What of the rule is not in force, in words: what the GPU forgot, what somebody decided, what cannot be known.

    A value that is the GPU's own default again was forgotten: by a reset, a load of the driver, a boot. Any other value
    somebody has typed. Locks are known from the record; that one was lost shows where the clock runs above it.
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
                if runs > wanted[1] + 30:  # more than what rounding to a step explains
                    seen["forgotten"].append("%s: runs above %d MHz" % (subject, wanted[1]))
            elif key not in LOCKS and now != wanted and now == DEFAULTS[key](handle):
                off = "persistence is off"  # its default
                seen["forgotten"].append(
                    off if key == "persistence" else "%s %s%s is the default" % (subject, plain(now), unit)
                )
            elif now != wanted:
                seen["decided"].append("%s %s%s, wanted %s%s" % (subject, plain(now), unit, plain(wanted), unit))
        except pynvml.NVMLError as error:
            seen["refused"].append("%s: %s" % (subject, in_words(text(str(error)), error.value, bus_id, key)))
            if error.value in LOST:
                break
    return seen


def settle(index, config, record, settled, only_forgotten):
    """Apply the GPU's rule: all of it, or `only_forgotten`, when the GPU has lost some of it.

    A lock whose record holds is not set again, unless the GPU forgot something: a reset takes all and the record stays.
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


# --- the configuration, and what GPUs are called


def rule_for(gpu, config):
    """The first rule that matches the GPU, None when none does."""
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
    """`SXM2-1 0000:06:00.0`, or the bus id alone where nobody has named the position."""
    named = {short(one): position for one, position in config.get("positions", {}).items()}
    return ("%s %s" % (named.get(short(bus_id), ""), short(bus_id))).strip()


def called(gpu, config):
    return "%s %s %s" % (place(gpu["pci_bus_id"], config), gpu["uuid"][:12], gpu["name"])


def places(count, gpus, config):
    """Name in ask_all -> what to call a GPU that does not tell its bus id.

    NVML counts GPUs in the order of their bus. So between two that answered stand those whose bus ids lie between; the
    driver's own list of bus ids tells them, or the positions. Where that is not so many, nobody can say.
    """
    answered = {gpu["index"]: bus_numbers(gpu["pci_bus_id"]) for gpu in gpus}
    try:
        bound = os.listdir(ROOT + "/proc/driver/nvidia/gpus")
    except OSError:
        bound = []
    names = {}
    for index in range(count):
        before = max((one for one in answered if one < index), default=-1)
        after = min((one for one in answered if one > index), default=count)
        low, high = answered.get(before, []), answered.get(after, [1 << 32])
        for known in (bound, config.get("positions", {})):
            between = [one for one in sorted(known, key=bus_numbers) if low < bus_numbers(one) < high]
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


RULE = {  # key -> (what it has to be, whether it is)
    "persistence": ("true or false", lambda value: isinstance(value, bool)),
    "power_limit_w": ("a number of watts", lambda value: whole(value) or isinstance(value, float)),
    "application_clocks": ("{memory_mhz, graphics_mhz}, whole numbers", clock_pair),
    "locked_graphics_mhz": ("[min, max], whole numbers", mhz_range),
    "locked_memory_mhz": ("[min, max], whole numbers", mhz_range),
}


def mistakes(config):
    """What is wrong with a configuration, in words."""
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
    """The configuration with every key known; a mistake ends the program."""
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
    """One line for the journal; what was refused goes to stderr. True when nothing was refused."""
    done = "; ".join(gpu["done"]) or ("nothing changed" if gpu["refused"] else "as wanted, nothing to change")
    print("%s: %s" % (called(gpu, config), done), flush=True)
    for line in gpu["refused"]:
        complain("%s: refused: %s" % (called(gpu, config), line))
    return not gpu["refused"]


def complain(line):
    print(line, file=sys.stderr, flush=True)


def final(answer):
    return answer["code"] in FINAL or "hangs" in answer


def note_locks(answer):
    """The record follows each answer as it comes."""
    gpu = answer.get("value", {})
    if gpu.get("locked"):
        write_locks(gpu["uuid"], gpu["locked"])


def absent(config, gpus, count, silent):
    """The GPUs that are expected, or named by a rule, and that are not there; `silent` are called those that are."""
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
    nobody += uuids if len(uuids) > len(silent) else []  # a silent one does not tell its UUID
    return lines + ["no GPU answers to %s" % one for one in nobody]


def settle_all(config, timeout_s, stuck, but=(), settled=(), only_forgotten=False):
    """How many GPUs there are, the answer of each by its name in ask_all, and what to call each in a line.

    Those in `but` are not asked. Raises Refused when the driver does not answer; its second argument is the answer.
    """
    answer = ask_all({"driver": overview}, timeout_s, stuck)["driver"]
    if "error" in answer:
        raise Refused("driver: " + in_words(answer["error"], answer["code"]), answer)
    count, record = answer["value"]["count"], locks_in_force()
    tasks = {
        "GPU %d" % index: functools.partial(settle, index, config, record, settled, only_forgotten)
        for index in range(count)
        if "GPU %d" % index not in but
    }
    answers = ask_all(tasks, timeout_s, stuck, note_locks)
    called_so = places(count, [one["value"] for one in answers.values() if "value" in one], config)
    return count, answers, called_so


def one_round(config, settled, hopeless, timeout_s):
    """Settle every GPU that answers; the reasons to go on waiting."""
    stuck = remembered()["stuck"]
    waiting = []
    try:
        count, answers, names = settle_all(config, timeout_s, stuck, hopeless, list(settled))
    except Refused as error:
        if final(error.args[1]):
            hopeless["driver"] = error.args[0]
        else:
            waiting.append(error.args[0])
        count, answers, names = None, {}, {}
    for name, answer in answers.items():
        if "error" in answer:
            said = failed(answer, names[name])
            if final(answer):
                hopeless[name] = said
            else:
                waiting.append(said)
        elif answer["value"]["uuid"] not in settled:
            gpu = answer["value"]
            settled[gpu["uuid"]] = dict(gpu, good=report(gpu, config))
    if count is not None:
        waiting += absent(config, settled.values(), count, [names[name] for name in hopeless if name in names])
    put(MEMORY, json.dumps({"stuck": stuck}))
    return waiting


def failed(answer, name):
    """A GPU's answer that is none, in words."""
    bus_id = name.split()[-1] if ":" in name else "ITS_BUS_ID"
    return "%s: %s" % (name, in_words(answer["error"], answer["code"], bus_id))


def apply(path, wait_s, timeout_s):
    """Settle each GPU as soon as it answers, until all are there or the time is up; the exit status."""
    deadline = time.monotonic() + wait_s
    settled, hopeless = {}, {}  # by UUID: the GPU and what was done; by name: what it says of itself
    while True:
        with at_work(120):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(RESTS)
            waiting = one_round(load_config(path), settled, hopeless, timeout_s)
        if not waiting or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    failures = [line for _, line in sorted(hopeless.items())] + waiting
    for line in failures:
        complain(line)
    return 1 if failures or not all(gpu["good"] for gpu in settled.values()) else 0


def watch(path, timeout_s):
    """Apply the rule of each GPU that forgot some of it; say what is new since the last look. The exit status."""
    with at_work(0):
        if os.path.exists(RESTS):
            return 0
        config, memory = load_config(path), remembered()
        lines = one_look(config, memory["stuck"], timeout_s)
        times = {line: memory["said"].get(line, 0) + 1 for _, line in lines}  # in a row
        for bad, line in lines:
            most = 3 if ": forgotten (" in line else 1  # what is so twice is no news, what happened twice is
            if times[line] <= most:
                more = " (at each of %d looks, said no more)" % most if times[line] == most > 1 else ""
                print(line + more, file=sys.stderr if bad else sys.stdout, flush=True)
        put(MEMORY, json.dumps({"said": times, "stuck": memory["stuck"]}))
    return 1 if any(bad for bad, _ in lines) else 0


def one_look(config, stuck, timeout_s):
    """All that there is to say: (whether it is bad, line)."""
    if driver_load() == "-":  # NVML would load it, under the hands of somebody who has just unloaded it
        return [(False, "the driver is not loaded: nothing to look at")]
    try:
        count, answers, names = settle_all(config, timeout_s, stuck, only_forgotten=True)
    except Refused as error:
        return [(True, error.args[0])]
    gpus = [answer["value"] for answer in answers.values() if "value" in answer]
    silent = {names[name]: failed(answer, names[name]) for name, answer in answers.items() if "error" in answer}
    lines = [(True, line) for line in [*silent.values(), *absent(config, gpus, count, [*silent])]]
    for gpu in gpus:
        title, done = called(gpu, config), "; ".join(gpu["done"])
        if gpu["forgotten"]:
            lines.append((False, "%s: forgotten (%s): %s" % (title, "; ".join(gpu["forgotten"]), done or "not mended")))
        elif done:
            lines.append((False, "%s: %s" % (title, done)))
        lines += [(True, "%s: refused: %s" % (title, one)) for one in gpu["refused"]]
        lines += [(False, "%s: drift: %s; left alone" % (title, one)) for one in gpu["decided"]]
    return lines


def show(config, timeout_s):
    """Print the document; with a configuration each GPU's rule stands in it as wanted. Exit status 1: no driver."""
    stuck = remembered()["stuck"]
    answer = ask_all({"driver": overview}, timeout_s, stuck)["driver"]
    versions = answer.get("value", {})
    document = {key: versions.get(key) for key in ("driver_version", "nvml_version")}
    if "error" in answer:
        document["errors"] = {"driver": answer["error"]}
        complain("driver: " + in_words(answer["error"], answer["code"]))
    count, record = versions.get("count", 0), locks_in_force()
    tasks = {"GPU %d" % index: functools.partial(state, index) for index in range(count)}
    answers = ask_all(tasks, timeout_s, stuck)
    names = places(count, [one["value"] for one in answers.values() if "value" in one], config or {})
    document["gpus"] = []
    for index, (name, one) in enumerate(answers.items()):
        unknown = dict(dict.fromkeys(dict(IDENTITY, **STATE)), index=index)
        gpu = one["value"] if "value" in one else dict(unknown, errors={"gpu": one["error"]})
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
    return 1 if "error" in answer else 0


def reset(config, timeout_s):
    """Power and clocks of every GPU back to its defaults; watch rests until the next apply. The exit status."""
    with at_work(120):
        stuck = remembered()["stuck"]
        put(RESTS, "")
        answer = ask_all({"driver": overview}, timeout_s, stuck)["driver"]
        if "error" in answer:
            complain("driver: " + in_words(answer["error"], answer["code"]))
            return 1
        count = answer["value"]["count"]
        tasks = {"GPU %d" % index: functools.partial(reset_gpu, index) for index in range(count)}
        answers = ask_all(tasks, timeout_s, stuck, note_locks)
        put(MEMORY, json.dumps({"stuck": stuck}))
    names = places(count, [one["value"] for one in answers.values() if "value" in one], config)
    good = True
    for name, one in answers.items():
        if "error" in one:
            complain(failed(one, names[name]))
        good = "value" in one and report(one["value"], config) and good
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["apply", "watch", "show", "reset"])
    parser.add_argument("--config", help="the wanted limits; apply and watch take %s when not given" % CONFIG)
    parser.add_argument("--wait-s", type=float, default=120, help="apply: how long to wait for GPUs that are not there")
    parser.add_argument("--gpu-timeout-s", type=float, help="how long one GPU may take (60; show, watch: 20)")
    options = parser.parse_args()
    timeout_s = options.gpu_timeout_s or (20 if options.command in ("show", "watch") else 60)
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
    except TimeoutError as error:  # another is at work: watch comes again, the others have something to do
        if options.command == "watch":
            return 0
        sys.exit(str(error))
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
