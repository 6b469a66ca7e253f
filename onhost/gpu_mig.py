#!/usr/bin/env python3
"""Make the MIG mode and the MIG instances of every GPU of this machine what its configuration says.

    gpu_mig.py apply [--config FILE] [--wait-s 60]   at boot from gpu-mig.service, or by hand
    gpu_mig.py check [--config FILE]                 say what the driver would refuse; FILE may be - (stdin)
    gpu_mig.py show                                  print modes, instances, profiles and placements as JSON

It needs root (except show and check), pynvml.py and gpu_limits.py beside this file. Exit status: 0
every GPU is as wanted; 1 a GPU refused, is used, or the driver does not answer; 2 wrong usage; 3 GPUs are lost
or missing.

The configuration: {"positions": {"0000:07:00.0": "SXM4-0"}, "gpus": [{"match": {"pci_bus_id": "0000:07:00.0"},
"layout": [{"profile": "3g.20gb", "parts": [1, 2]}, {"profile": "1g.5gb", "parts": [1]}]}]}. `parts` are the slices of
the compute instances of a GPU instance. An empty layout switches MIG off. A GPU that no rule matches is left alone.

Nothing is changed on a GPU that a process uses, that has no MIG, or whose profiles and placements, as the driver lists
them, have no room for the layout. If the driver refuses on the way, the GPU gets its earlier mode and instances again.
"""

import argparse
import contextlib
import ctypes
import functools
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_limits as limits

pynvml = limits.pynvml
Refused = limits.Refused
CONFIG = limits.ROOT + "/etc/rigwright/mig.json"


class Waits(Refused):
    """A mode that is set, and waits for a boot."""


LACKS = {2, 3}  # NVML's answer for a profile that this GPU, or this driver, does not have
UNITS = "systemd-cgls, sudo fuser -v /dev/nvidia*"
WAITS = {  # NVML's codes of an activation that did not happen
    3: "this machine cannot reset the GPU: it waits for a reboot",
    16: "it waits for a reset of the GPU, or a reboot",
    19: "a program or a monitoring agent has the GPU open (%s)" % UNITS,
}


# --- reading a GPU (in the child process)


def mode(handle):
    """Whether MIG is on, now and after the next reset; (None, None) of a GPU without MIG."""
    try:
        return tuple(bool(value) for value in pynvml.nvmlDeviceGetMigMode(handle))
    except pynvml.NVMLError as error:
        if error.value in LACKS:
            return None, None
        raise


def profiles_of(handle):
    """The profiles of GPU instances by their name (3g.20gb). Without MIG mode the driver lists no placements."""
    profiles = {}
    for number in range(64):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        except pynvml.NVMLError as error:
            if error.value in LACKS:
                continue
            if error.value == 13:
                raise Refused("driver 510 or newer is needed: this one does not name its profiles") from None
            raise
        profile = {"id": info.id, "slices": info.sliceCount, "most": info.instanceCount}
        profiles.setdefault(
            limits.text(info.name).replace("MIG ", ""), dict(profile, placements=placements(handle, info.id))
        )
    return profiles


def placements(handle, profile_id):
    """[first slice of memory, number of slices] of each place for a profile; None while MIG is off."""
    count = ctypes.c_uint(0)
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
        room = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    except pynvml.NVMLError as error:
        if error.value in LACKS or error.value == 4:
            return None
        raise
    return [[room[at].start, room[at].size] for at in range(count.value)]


def handles_of(function, kind, most, *words):
    """The handles that a function of NVML writes into a list."""
    count, room = ctypes.c_uint(most), (kind * max(most, 1))()
    function(*words, room, ctypes.byref(count))
    return [room[at] for at in range(count.value)]


def gpu_instances(handle, profiles):
    """The GPU instances: pairs of handle and the name of the profile."""
    kind, get, instances = pynvml.c_nvmlGpuInstance_t, pynvml.nvmlDeviceGetGpuInstances, []
    for name, profile in profiles.items():
        instances += [(entry, name) for entry in handles_of(get, kind, profile["most"], handle, profile["id"])]
    return instances


def part_profiles(instance):
    """The profiles of compute instances of a GPU instance: by number of slices, their id and the largest number."""
    profiles = {}
    for number in range(32):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
        except pynvml.NVMLError as error:
            if error.value in LACKS:
                continue
            raise
        profiles.setdefault(info.sliceCount, (info.id, info.instanceCount))
    return profiles


def compute_instances(instance):
    """The compute instances of a GPU instance: pairs of handle and number of slices."""
    kind, get, instances = pynvml.c_nvmlComputeInstance_t, pynvml.nvmlGpuInstanceGetComputeInstances, []
    for slices, (number, most) in part_profiles(instance).items():
        instances += [(entry, slices) for entry in handles_of(get, kind, most, instance, number)]
    return instances


def layout_of(handle, profiles):
    """The instances of a GPU as a configuration describes them, with the place of each."""
    layout = []
    for instance, name in gpu_instances(handle, profiles):
        info = pynvml.nvmlGpuInstanceGetInfo(instance)
        parts = sorted(slices for _, slices in compute_instances(instance))
        layout.append({"profile": name, "parts": parts, "start": info.placement.start, "size": info.placement.size})
    return sorted(layout, key=lambda entry: entry["start"])


def state(index):
    """All that show prints of a GPU."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = limits.identity(index, handle)
    gpu["current"], gpu["pending"] = mode(handle)
    gpu["profiles"] = profiles_of(handle) if gpu["current"] is not None else {}
    gpu["layout"] = layout_of(handle, gpu["profiles"]) if gpu["current"] else []
    return gpu


# --- whether a layout fits


def arrangement(layout, profiles):
    """The layout with a placement for each instance, the largest first. Raises Refused for a layout that does not fit.

    While MIG is off the driver lists no placements, and only the profiles, their number and the sum of slices are
    judged."""
    for entry in layout:
        if entry["profile"] not in profiles:
            raise Refused("there is no profile %s; it has %s" % (entry["profile"], ", ".join(sorted(profiles))))
        slices = profiles[entry["profile"]]["slices"]
        if sum(entry["parts"]) > slices:
            parts = "+".join(map(str, entry["parts"]))
            raise Refused("compute instances of %s slices are more than %s has" % (parts, entry["profile"]))
    for name, known in profiles.items():
        number = sum(entry["profile"] == name for entry in layout)
        if number > known["most"]:
            raise Refused("%d instances of %s, and the driver allows %d" % (number, name, known["most"]))
    if any(profiles[entry["profile"]]["placements"] is None for entry in layout):
        slices = sum(profiles[entry["profile"]]["slices"] for entry in layout)
        if slices > max(known["slices"] for known in profiles.values()):
            raise Refused("%s has no room: %d slices" % (words(layout), slices))
        return [dict(entry, start=None) for entry in layout]
    order = sorted(layout, key=lambda entry: -profiles[entry["profile"]]["slices"])
    plan = with_places(order, profiles, 0)
    if plan is None:
        raise Refused("the placements that the driver lists have no room for %s" % words(layout))
    return plan


def with_places(order, profiles, used):
    """The instances with places beside the slices of memory in the bits of `used`; None if there is no room."""
    if not order:
        return []
    first = order[0]
    for start, size in reversed(profiles[first["profile"]]["placements"]):  # from the end, as the driver does it
        bits = ((1 << size) - 1) << start
        rest = None if used & bits else with_places(order[1:], profiles, used | bits)
        if rest is not None:
            return [dict(first, start=start, size=size), *rest]
    return None


def words(layout):
    """`3g.20gb/1c+2c, 1g.5gb`; `no instances`."""
    texts = []
    for entry in layout:
        whole = entry["parts"] == [int(entry["profile"].partition("g")[0])]
        parts = "+".join("%dc" % slices for slices in entry["parts"]) or "none"
        texts.append(entry["profile"] + ("" if whole else "/" + parts))
    return ", ".join(texts) or "no instances"


def same(layout, other):
    return sorted(words([entry]) for entry in layout) == sorted(words([entry]) for entry in other)


# --- changing a GPU (in the child process)


def destroy(handle, profiles):
    """Destroys all instances of a GPU."""
    for instance, _ in gpu_instances(handle, profiles):
        for entry, _ in compute_instances(instance):
            pynvml.nvmlComputeInstanceDestroy(entry)
        pynvml.nvmlGpuInstanceDestroy(instance)


def create(handle, layout, profiles):
    """Creates the instances of an arranged layout."""
    for entry in layout:
        place = pynvml.c_nvmlGpuInstancePlacement_t(entry["start"], entry["size"])
        number = profiles[entry["profile"]]["id"]
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, number, ctypes.byref(place))
        of = part_profiles(instance)
        for slices in sorted(entry["parts"], reverse=True):
            if slices not in of:
                raise Refused("%s has no compute instance of %d slices" % (entry["profile"], slices))
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, of[slices][0])


def switch(index, on):
    """Sets the mode of a GPU, and returns its handle, which may be another one. Raises Refused if the mode waits."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    code = pynvml.nvmlDeviceSetMigMode(handle, int(on))
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if mode(handle)[0] != on:
        kind = Waits if code in (3, 16) else Refused
        raise kind("MIG was switched %s: %s" % ("on" if on else "off", WAITS.get(code, "NVML's code %d" % code)))
    return handle


def settle(index, config):
    """Gives a GPU the layout of its rule. Its answer has what was `done` and `refused`."""
    gpu = dict(state(index), done=[], refused=[])
    rule = limits.rule_for(gpu, config)
    try:
        if rule and rule.get("layout") is not None:
            change(gpu, rule["layout"])
    except Refused as error:
        gpu["refused"].append(str(error))
    except pynvml.NVMLError as error:
        if error.value in limits.LOST:
            raise
        gpu["refused"].append(limits.text(str(error)))
    return gpu


def change(gpu, layout):
    before, was_on, index = gpu["layout"], gpu["current"], gpu["index"]
    if was_on is None:
        if layout:
            raise Refused("this GPU has no MIG: take it out of mig")
        return
    wanted_on = bool(layout)
    if was_on == wanted_on == gpu["pending"] and same(before, layout):
        return
    handle, profiles = pynvml.nvmlDeviceGetHandleByIndex(index), gpu["profiles"]
    plan = arrangement(layout, profiles)
    users = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    if users:
        raise Refused("process %s computes on it: end it, then the same again" % ", ".join(map(str, users)))
    try:
        if was_on:
            destroy(handle, profiles)
        if was_on != wanted_on or gpu["pending"] != wanted_on:
            handle = switch(index, wanted_on)
        if wanted_on:
            profiles = profiles_of(handle)
            plan = arrangement(layout, profiles)
            create(handle, plan, profiles)
        after = layout_of(handle, profiles) if wanted_on else []
        if not same(after, layout):
            raise Refused("set to %s, and it has %s" % (words(layout), words(after)))
    except Waits:
        raise
    except (Refused, pynvml.NVMLError):
        with contextlib.suppress(Refused, pynvml.NVMLError):
            put_back(index, was_on, before)
        raise
    now = words(before) if was_on else "off"
    gpu["done"].append("MIG %s -> %s" % (now, words(layout) if wanted_on else "off"))


def put_back(index, was_on, before):
    """The mode and the instances that a GPU had before a change that was refused on the way."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    now, pending = mode(handle)
    if now:
        destroy(handle, profiles_of(handle))
    if now != was_on or pending != was_on:
        handle = switch(index, was_on)
    if was_on:
        create(handle, before, profiles_of(handle))


# --- the commands


def examine(index, config):
    """A GPU with what the driver would refuse of its rule."""
    gpu = dict(state(index), refused=[])
    rule = limits.rule_for(gpu, config)
    layout = rule.get("layout") if rule else None
    try:
        if layout and gpu["current"] is None:
            raise Refused("this GPU has no MIG: take it out of mig")
        if layout:
            arrangement(layout, gpu["profiles"])
    except Refused as error:
        gpu["refused"].append(str(error))
    return gpu


def read_config(path):
    """The configuration. A mistake ends the program."""
    try:
        with sys.stdin if path == "-" else open(path) as file:
            config = json.load(file)
        for rule in config["gpus"]:
            for entry in rule["layout"]:
                parts = [int(slices) for slices in entry["parts"]]
                if not (isinstance(entry["profile"], str) and parts and min(parts) > 0):
                    raise ValueError("a layout has a profile and its parts")
        return config
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit("%s: %s: %s" % (path, type(error).__name__, error))


def each(task, config, timeout_s, stuck):
    """Runs task(index) for each GPU, one after the other: a GPU cannot be reset while another process has it open."""
    driver = limits.ask_all({"driver": limits.overview}, timeout_s, stuck)["driver"]
    if "error" in driver:
        raise Refused("driver: " + limits.in_words(driver["error"], driver["code"]))
    answers = {}
    for index in range(driver["value"]["count"]):
        name = "GPU %d" % index
        answers.update(limits.ask_all({name: functools.partial(task, index)}, timeout_s, stuck))
    answered = [answer["value"] for answer in answers.values() if "value" in answer]
    return driver["value"]["count"], answers, limits.places(len(answers), answered, config)


def apply(path, wait_s):
    """Sets each GPU, and waits for those that are not there. Returns the exit status."""
    config, deadline = read_config(path), time.monotonic() + wait_s
    while True:
        gpus, failures = [], []  # failures: pairs of exit status and text
        try:
            with limits.at_work(120):
                count, answers, names = each(functools.partial(settle, config=config), config, 120, {})
            gpus = [answer["value"] for answer in answers.values() if "value" in answer]
            silent = [names[name] for name, answer in answers.items() if "error" in answer]
            for name, answer in answers.items():
                if "error" in answer:
                    failures.append((limits.status_of(answer), limits.failure_of(answer, names[name])))
            failures += [(limits.ABSENT, line) for line in limits.missing_gpus(config, gpus, count, silent)]
        except Refused as error:
            failures.append((1, str(error)))
        last = not failures or time.monotonic() >= deadline
        refused = [1 for gpu in gpus if (last or gpu["done"] or gpu["refused"]) and not limits.report(gpu, config)]
        if last:
            break
        time.sleep(1)
    for _, line in failures:
        limits.complain(line)
    return min([status for status, _ in failures] + refused, default=0)


def show(task, config):
    """Prints the document of what the task says of each GPU. Returns 1 when the driver does not answer."""
    try:
        _, answers, names = each(task, config, 20, {})
    except Refused as error:
        limits.complain(str(error))
        return 1
    gpus = []
    for name, answer in answers.items():
        gpus.append(answer["value"] if "value" in answer else {"place": names[name], "error": answer["error"]})
    print(json.dumps({"gpus": gpus}))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["apply", "check", "show"])
    parser.add_argument("--config", default=CONFIG, help="the wanted layouts (%s)" % CONFIG)
    parser.add_argument("--wait-s", type=float, default=60, help="apply: how long to wait for GPUs that are not there")
    options = parser.parse_args()
    if options.command == "show":
        return show(state, {})
    if options.command == "check":
        config = read_config(options.config)
        return show(functools.partial(examine, config=config), config)
    if os.geteuid():
        sys.exit("apply wants root: sudo %s" % " ".join(sys.argv))
    try:
        return apply(options.config, options.wait_s)
    except (TimeoutError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
