#!/usr/bin/env python3
"""Put the wanted persistence, power limit and clocks on every GPU of this machine; show or reset them.

    gpu_limits.py apply [--config FILE] [--wait-s 120]   at boot from a systemd unit, or by hand
    gpu_limits.py show [--config FILE]                   one JSON document of what is in force
    gpu_limits.py reset                                  power and clocks back to the GPU's defaults

Needs root (but for show), Python 3.8 and pynvml.py of nvidia-ml-py beside this file. Exit status: 0 all is as wanted,
1 something is not (named on stderr; the other GPUs are done all the same), 2 wrong usage.

The configuration: {"expected_gpus": 4, "gpus": [{"match": {"uuid": "GPU-..."}, "persistence": true,
"power_limit_w": 200, "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
"locked_graphics_mhz": [210, 1400]}]}. A GPU takes the first rule that matches; match is {"uuid": ...},
{"pci_bus_id": ...} or {} for any. All but match is optional, and what is left out is left alone. "positions" may stand
there too: the names of the slots by bus id, for who reads the file.

A lost GPU can block the kernel call of whoever asks it, for ever and even against kill. So each GPU is asked in a
process of its own that holds nothing of ours open, and one that does not answer in time is given up, not waited for.
"""

import argparse
import functools
import json
import os
import re
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pynvml

CONFIG = "/etc/rigwright/limits.json"
RULE_KEYS = {"match", "persistence", "power_limit_w", "application_clocks", "locked_graphics_mhz"}
FINAL = {4, 12, 15, 16, 18}  # no permission, no library, GPU lost, reset needed, wrong library: waiting mends none
GRAPHICS, MEMORY = 0, 2  # NVML's clock domains


class Refused(Exception):
    """A GPU that does not do what is wanted, in words for the journal."""


# --- each GPU in a process of its own


def ask_all(tasks, timeout_s):
    """Run the functions side by side, each in its own process; their answers in the same order.

    An answer is {"value": what the function returned} or {"error": text, "code": NVML's number or None}.
    """
    answers = [{"error": "no answer within %g s" % timeout_s, "code": None, "hangs": True} for _ in tasks]
    running = {}  # read end of the pipe -> (position, process, parts of the answer)
    for position, task in enumerate(tasks):
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            answer_and_exit(task, write_end)
        os.close(write_end)
        running[read_end] = (position, process, [])
    deadline = time.monotonic() + timeout_s
    while running and time.monotonic() < deadline:
        for end in select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))[0]:
            position, process, parts = running[end]
            parts.append(os.read(end, 65536))
            if not parts[-1]:
                answers[position] = parsed(b"".join(parts))
                os.close(end)
                del running[end]
    for end, (_, process, _) in running.items():
        os.kill(process, signal.SIGKILL)  # not waited for: it may hang in the kernel
        os.close(end)
    return answers


def answer_and_exit(task, write_end):
    """In the child: let go of the terminal or pipe of whoever started us, ask, write the answer, end at once."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
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


def text(value):
    """str, also of the bytes that pynvml gave before 11.5."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- what a GPU is and has (in the child)


def overview():
    return {
        "count": pynvml.nvmlDeviceGetCount(),
        "driver_version": text(pynvml.nvmlSystemGetDriverVersion()),
        "nvml_version": text(pynvml.nvmlSystemGetNVMLVersion()),
    }


def clocks(getter, handle):
    return {"memory_mhz": getter(handle, MEMORY), "graphics_mhz": getter(handle, GRAPHICS)}


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
}


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
    return ("on" if value else "off") if isinstance(value, bool) else "%g" % value


def set_persistence(handle, wanted):
    read = functools.partial(STATE["persistence"], handle)
    return ensure(wanted, read, lambda: pynvml.nvmlDeviceSetPersistenceMode(handle, int(wanted)), "")


def set_power_limit(handle, watts):
    low, high = STATE["power_limit_min_w"](handle), STATE["power_limit_max_w"](handle)
    if not low <= watts <= high:
        raise Refused("%g W is not between %g and %g W" % (watts, low, high))
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


def set_locked_graphics(handle, wanted):
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, *wanted)
    return "to %d-%d MHz (set, not readable)" % tuple(wanted)


def reset_power_limit(handle, _):
    return set_power_limit(handle, STATE["power_limit_default_w"](handle))


def reset_application_clocks(handle, _):
    default, read = STATE["default_application_clocks"](handle), functools.partial(STATE["application_clocks"], handle)
    return ensure(default, read, lambda: pynvml.nvmlDeviceResetApplicationsClocks(handle), " MHz")


STEPS = [  # in this order: what is set before persistence is on is lost with the last client
    ("persistence", "persistence", set_persistence),
    ("power_limit_w", "power limit", set_power_limit),
    ("application_clocks", "application clocks", set_application_clocks),
    ("locked_graphics_mhz", "locked graphics clock", set_locked_graphics),
]
RESETS = [
    ("power limit", reset_power_limit),
    ("application clocks", reset_application_clocks),
    ("locked graphics clock", lambda handle, _: pynvml.nvmlDeviceResetGpuLockedClocks(handle)),
    ("locked memory clock", lambda handle, _: pynvml.nvmlDeviceResetMemoryLockedClocks(handle)),
]


def take(steps, handle, may_lack=()):
    """Take every step, whatever becomes of the others; what was done, and what was refused with the reason."""
    done, refused = [], []
    for subject, function, value in steps:
        try:
            said = function(handle, value)
            if said:
                done.append("%s %s" % (subject, said))
        except Refused as error:
            refused.append("%s: %s" % (subject, error))
        except pynvml.NVMLError as error:
            if error.value not in may_lack:
                refused.append("%s: %s" % (subject, text(str(error))))
    return {"done": done, "refused": refused}


def apply_to(index, config, settled):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = identity(index, handle)
    rule = rule_for(gpu, config)
    if gpu["uuid"] in settled:
        return gpu
    if rule is None:
        return dict(gpu, done=["no rule for it, left alone"], refused=[])
    return dict(gpu, **take([(subject, step, rule[key]) for key, subject, step in STEPS if key in rule], handle))


def reset_gpu(index):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    steps = [(subject, step, None) for subject, step in RESETS]
    return dict(identity(index, handle), **take(steps, handle, may_lack=(3, 13)))


# --- the configuration


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


def load_config(path):
    """The configuration with every key known; a mistake ends the program."""
    try:
        with open(path) as file:
            config = json.load(file)
        unknown = set(config) - {"gpus", "expected_gpus", "positions"}
        for rule in config["gpus"]:
            unknown |= set(rule) - RULE_KEYS | set(rule.get("match", {})) - {"uuid", "pci_bus_id"}
            bus_numbers(rule.get("match", {}).get("pci_bus_id", "0"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit("%s: %s: %s" % (path, type(error).__name__, error))
    if unknown:
        sys.exit("%s: unknown key: %s" % (path, ", ".join(sorted(unknown))))
    return config


# --- the commands


def report(gpu):
    """One line for the journal; what was refused goes to stderr. True when nothing was refused."""
    title = "GPU %(index)d %(pci_bus_id)s %(name)s" % gpu
    done = "; ".join(gpu["done"]) or ("nothing changed" if gpu["refused"] else "as wanted, nothing to change")
    print("%s: %s" % (title, done), flush=True)
    for line in gpu["refused"]:
        complain("%s: refused: %s" % (title, line))
    return not gpu["refused"]


def complain(line):
    print(line, file=sys.stderr, flush=True)


def final(answer):
    return answer["code"] in FINAL or "hangs" in answer


def absent(config, gpus):
    """The GPUs that the configuration names and that are not among those."""
    named = [rule["match"] for rule in config["gpus"] if rule.get("match")]
    lacking = [match for match in named if not any(rule_for(gpu, {"gpus": [{"match": match}]}) for gpu in gpus)]
    return ["no GPU answers to %s" % json.dumps(match) for match in lacking]


def one_round(config, settled, hopeless, timeout_s):
    """Settle every GPU that answers; the reasons to go on waiting."""
    (answer,) = ask_all([overview], timeout_s)
    if "error" in answer:
        if final(answer):
            hopeless["driver"] = answer["error"]
        return [] if final(answer) else ["driver: " + answer["error"]]
    count, expected = answer["value"]["count"], config.get("expected_gpus", 1)
    waiting = ["%d of %d expected GPUs present" % (count, expected)] if count < expected else []
    indexes = [index for index in range(count) if "GPU %d" % index not in hopeless]
    tasks = [functools.partial(apply_to, index, config, list(settled)) for index in indexes]
    for position, answer in enumerate(ask_all(tasks, timeout_s)):
        index = indexes[position]
        if "error" not in answer:
            gpu = answer["value"]
            if gpu["uuid"] not in settled:
                settled[gpu["uuid"]] = dict(gpu, good=report(gpu))
        elif final(answer):
            hopeless["GPU %d" % index] = answer["error"]
        else:
            waiting.append("GPU %d: %s" % (index, answer["error"]))
    lacking = absent(config, settled.values())
    return waiting + (lacking if len(lacking) > len(hopeless) else [])  # a hopeless one will not tell its name


def apply(config, wait_s, timeout_s):
    """Settle each GPU as soon as it answers, until all are there or the time is up; the exit status."""
    deadline = time.monotonic() + wait_s
    settled, hopeless = {}, {}  # by UUID: the GPU and what was done; by title: the reason
    waiting = one_round(config, settled, hopeless, timeout_s)
    while waiting and time.monotonic() < deadline:
        time.sleep(0.5)
        waiting = one_round(config, settled, hopeless, timeout_s)
    failures = ["%s: %s" % item for item in sorted(hopeless.items())] + waiting
    if "driver" not in hopeless:
        failures += [line for line in absent(config, settled.values()) if line not in failures]
    for line in failures:
        complain(line)
    return 1 if failures or not all(gpu["good"] for gpu in settled.values()) else 0


def show(config, timeout_s):
    """Print the document; with a configuration each GPU's rule stands in it as wanted. Exit status 1: no driver."""
    (answer,) = ask_all([overview], timeout_s)
    versions = answer.get("value", {})
    document = {key: versions.get(key) for key in ("driver_version", "nvml_version")}
    if "error" in answer:
        document["errors"] = {"driver": answer["error"]}
        complain("driver: " + answer["error"])
    tasks = [functools.partial(state, index) for index in range(versions.get("count", 0))]
    document["gpus"] = []
    for index, one in enumerate(ask_all(tasks, timeout_s)):
        unknown = dict(dict.fromkeys(dict(IDENTITY, **STATE)), index=index)
        gpu = one["value"] if "value" in one else dict(unknown, errors={"gpu": one["error"]})
        if config:
            gpu["wanted"] = rule_for(gpu, config) if gpu["uuid"] and gpu["pci_bus_id"] else None
        document["gpus"].append(gpu)
    if config:
        document["expected_gpus"] = config.get("expected_gpus")
    print(json.dumps(document))
    return 1 if "error" in answer else 0


def reset(timeout_s):
    """Power and clocks of every GPU back to its defaults; the exit status."""
    (answer,) = ask_all([overview], timeout_s)
    if "error" in answer:
        complain("driver: " + answer["error"])
        return 1
    good = True
    tasks = [functools.partial(reset_gpu, index) for index in range(answer["value"]["count"])]
    for index, one in enumerate(ask_all(tasks, timeout_s)):
        if "error" in one:
            complain("GPU %d: %s" % (index, one["error"]))
        good = "value" in one and report(one["value"]) and good
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["apply", "show", "reset"])
    parser.add_argument("--config", help="the wanted limits; apply takes %s when not given" % CONFIG)
    parser.add_argument("--wait-s", type=float, default=120, help="apply: how long to wait for GPUs that are not there")
    parser.add_argument("--gpu-timeout-s", type=float, help="how long one GPU may take (60; show: 20)")
    options = parser.parse_args()
    timeout_s = options.gpu_timeout_s or (20 if options.command == "show" else 60)
    if options.command == "apply":
        return apply(load_config(options.config or CONFIG), options.wait_s, timeout_s)
    if options.command == "show":
        return show(load_config(options.config) if options.config else None, timeout_s)
    return reset(timeout_s)


if __name__ == "__main__":
    sys.exit(main())
