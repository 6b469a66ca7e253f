#!/usr/bin/env python3
"""Measures the speed and the power of this machine's GPUs at several limits, and puts the limits back. Prints JSON.

    limits_sweep.py sweep --points '[{"GPU-...": {"power_limit_w": 150}}, {"GPU-...": {"power_limit_w": 250}}]'
    limits_sweep.py restore          puts back what a sweep that was killed has left

Needs root, what nccl_load.py needs, and pynvml.py and gpu_limits.py beside this file. A point is a rule of
gpu_limits.py for each GPU: power_limit_w, application_clocks or locked_graphics_mhz. At each point all GPUs compute
products of 4096 x 4096 matrices of 32-bit floats at once, first --settle-s seconds that do not count, then --seconds
seconds.

Before the first limit is set the values in force are written to --saved (default: limits-before.json beside this file);
`restore` sets them again and deletes the file. The sweep does that itself at its end, also after a signal; `restore` is
for a sweep that was killed. While the sweep runs it holds the lock of gpu_limits.py, so that the check of
gpu-limits.timer does nothing. A boot takes back what is set here. The driver does not report locked clocks: those on
record (gpu_limits.py) are set again, others are removed.

Exit status: 0 measured, 1 a point failed or a limit was not put back, 2 could not run; restore: 1 not put back. The
document:

    {"schema": 1, "outcome": "ok" | "failed" | "could not run", "started", "seconds", "versions", "libraries",
     "gpus": [{"index", "bus_id", "uuid", "name"}],
     "points": [{"number", "tflops": [one per GPU],
                 "sensors": [{"clock_mhz", "power_w", "temperature_c", "reasons"}, one per GPU] | null}],
     "lost": [{"gpu" (its index), "where" (the point), "what"}], "errors": [{"where", "what"}], "not_put_back": [text],
     "left_behind"}

After the point at which a GPU is lost no other one is measured.
"""

import contextlib
import functools
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_limits
import nccl_host
import nccl_load
import nccl_steps
import pynvml
from nccl_measurement import Measurement, carried_out, parse, parser_of
from nccl_watch import Watch, in_words, step

BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "limits-before.json")
LOCK_S = 60  # the check of gpu-limits.timer takes up to 20 s, longer while a GPU does not answer
RESTORE_LOCK_S = 5  # the limits are put back without the lock rather than not at all
ANSWER_S = 20  # systemd allows 30 s after the end of the unit
MOST_POINTS = 32
KINDS = ("power_limit_w", "application_clocks", "locked_graphics_mhz")
SETS = {key: (subject, function) for key, subject, function in gpu_limits.STEPS}
RESETS = {key: (subject, function) for key, subject, function in gpu_limits.RESETS}


# --- what was in force, and putting it back


def before(index, keys):
    """A GPU with a rule of the limits of `keys` that are in force, None if not set; and its range of power."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = gpu_limits.identity(index, handle)
    names, locks = keys.get(gpu["uuid"], ()), gpu_limits.locks_in_force().get(gpu["uuid"], {})
    gpu["rule"] = {key: locks.get(key) if key in gpu_limits.LOCKS else gpu_limits.STATE[key](handle) for key in names}
    if "power_limit_w" in names:
        gpu["power_w"] = [gpu_limits.STATE["power_limit_%s_w" % end](handle) for end in ("min", "max")]
    return gpu


def set_limits(handle, rule, bus_id):
    """Sets the limits of a rule; what it says None of is set free. Raises Refused with the first refusal."""
    steps = []
    for key, value in rule.items():
        subject, function = RESETS[key] if value is None else SETS[key]
        steps.append((key, subject, function, value))
    refused = gpu_limits.take(steps, handle, bus_id)["refused"]
    if refused:
        raise gpu_limits.Refused(refused[0])


def restore_gpu(saved):
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(saved["pci_bus_id"].encode())
    set_limits(handle, saved["rule"], gpu_limits.short(saved["pci_bus_id"]))


def restore(path):
    """Puts the limits of a file back, and then deletes it. Returns a text for each GPU for which that failed."""
    try:
        with open(path) as file:
            saved = json.load(file)
    except FileNotFoundError:
        return []
    lines = []
    if saved["boot"] == gpu_limits.boot_id():
        tasks = {gpu["uuid"]: functools.partial(restore_gpu, gpu) for gpu in saved["gpus"]}
        for uuid, answer in gpu_limits.ask_all(tasks, ANSWER_S, {}).items():
            if "error" in answer:
                lines.append("%s: %s" % (uuid, answer["error"]))
    if not lines:
        os.unlink(path)
        if saved["folder_is_new"]:
            remove_folder()
    return lines


def remove_folder():
    """Removes the folder of the lock, which was not there before, unless somebody has put something into it."""
    with contextlib.suppress(OSError):
        os.unlink(gpu_limits.RUN + "/limits.lock")
        os.rmdir(gpu_limits.RUN)


def restore_after(path):
    """The command `restore`; returns the exit status."""
    if not os.path.exists(path):
        return 0
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(TimeoutError):
            stack.enter_context(gpu_limits.at_work(RESTORE_LOCK_S))
        lines = restore(path)
    for line in lines:
        nccl_host.progress("not put back: %s" % line)
    nccl_host.progress("some limits are not as before" if lines else "the limits are as before")
    return 1 if lines else 0


# --- the load, in a process of its own


class SweepWork(nccl_load.LoadWork):
    """The points of the sweep. What it allocates stays until the process ends."""

    def __init__(self, job, report_fd):
        super().__init__(job, report_fd)
        self.each_s = None  # by GPU: seconds of one product, as last measured

    def do_point(self, gpus, rules, settle_s, seconds):
        """Sets the limits and multiplies: TFLOPS of each GPU, and what NVML says meanwhile."""
        handles = self.nvml_handles(gpus)
        if not handles:
            raise RuntimeError("NVML does not answer, and without it no limit can be set")
        for at, gpu in enumerate(gpus):
            if str(gpu) in rules:
                set_limits(handles[at], rules[str(gpu)], gpu_limits.short(self.bus_id(gpu).decode()))
        for gpu in gpus:
            self.prepare(gpu)
        if self.each_s is None:
            self.multiply_each(gpus, [4] * len(gpus))
            self.each_s = [took / 8 for took in self.multiply_each(gpus, [8] * len(gpus))]
        self.products_for(gpus, settle_s)
        _, sensors = self.with_sensors(gpus, lambda: self.products_for(gpus, seconds))
        rates = [round(nccl_load.PRODUCT / each / 1e12, 4) for each in self.each_s]
        return dict(nccl_steps.OK, tflops=rates, sensors=sensors)

    def products_for(self, gpus, seconds):
        """Products on all GPUs for about that long, as many on each as it does in that time; measures `each_s`."""
        numbers = [max(4, round(seconds / each)) for each in self.each_s]
        took = self.multiply_each(gpus, numbers)
        self.each_s = [took[at] / numbers[at] for at in range(len(gpus))]


# --- the sweep


class Sweep(Measurement):
    """One sweep; adds its results to `document`."""

    def __init__(self, options, watch):
        super().__init__(options, watch, points=[], lost=[], not_put_back=[])
        self.could_run, self.folder_is_new, self.held = False, False, contextlib.ExitStack()

    def run(self):
        nccl_host.end_when_left(self.options, "nobody waits for this sweep any more; it ends")
        if not self.looked(self.look(False)):
            return
        self.folder_is_new = not os.path.isdir(gpu_limits.RUN)
        try:
            self.held.enter_context(gpu_limits.at_work(LOCK_S))
        except TimeoutError:
            self.wrong("limits", "another program has been setting limits for %d s" % LOCK_S)
            return
        if self.save():
            self.could_run = True
            self.measure()

    def save(self):
        """Writes what is in force to the file; False, with the reason in the document, where that is not possible."""
        keys = {uuid: sorted(rule) for point in self.options.points for uuid, rule in point.items()}
        numbers = {gpu["uuid"]: gpu["index"] for gpu in self.document["gpus"]}
        unknown = sorted(set(keys) - set(numbers))
        if unknown:
            self.wrong("limits", "CUDA has no GPU %s" % unknown[0])
            return False
        count = gpu_limits.ask_all({"driver": gpu_limits.overview}, ANSWER_S, {})["driver"]
        if "error" in count:
            self.wrong("NVML", count["error"])
            return False
        tasks = {str(index): functools.partial(before, index, keys) for index in range(count["value"]["count"])}
        gpus = {}
        for answer in gpu_limits.ask_all(tasks, ANSWER_S, {}).values():
            if "error" in answer:
                self.wrong("NVML", answer["error"])
                return False
            if answer["value"]["uuid"] in keys:
                gpus[answer["value"]["uuid"]] = answer["value"]
        for uuid in keys:
            problem = self.outside(gpus[uuid]) if uuid in gpus else "NVML has no GPU %s" % uuid
            if problem:
                self.wrong("limits", problem)
                return False
        saved = {"boot": gpu_limits.boot_id(), "folder_is_new": self.folder_is_new, "gpus": list(gpus.values())}
        gpu_limits.put(self.options.saved, json.dumps(saved), 0o600)
        return True

    def outside(self, gpu):
        """A text for the first power limit of a point that the GPU does not take."""
        for point in self.options.points:
            watts = point.get(gpu["uuid"], {}).get("power_limit_w")
            if watts is not None and not gpu["power_w"][0] <= watts <= gpu["power_w"][1]:
                return "%g W is not between %g and %g W, which %s takes" % ((watts, *gpu["power_w"], gpu["uuid"]))
        return ""

    def measure(self):
        gpus = list(range(len(self.document["gpus"])))
        steps, options = [], self.options
        for number, point in enumerate(options.points):
            by_gpu = {str(gpu["index"]): point.get(gpu["uuid"]) for gpu in self.document["gpus"]}
            rules = {gpu: rule for gpu, rule in by_gpu.items() if rule}
            title = "point %d of %d, %s" % (number + 1, len(options.points), values_of(point))
            limit_s = 60 + 2 * (options.settle_s + options.seconds)
            arguments = [gpus, rules, options.settle_s, options.seconds]
            steps.append(step("point", title, "point %d" % number, arguments, gpus=gpus, timeout_s=limit_s))
        answers = self.watch.run(steps)
        failed = next((one["title"] for one in steps if answers[one["id"]]["ok"] is False), "")
        for gpu, what in sorted(self.watch.lost.items()):
            self.document["lost"].append({"gpu": gpu, "where": failed, "what": what})
        for number in range(len(steps)):
            answer = answers["point %d" % number]
            if answer["ok"] is True:
                values = {key: answer[key] for key in ("tflops", "sensors")}
                self.document["points"].append(dict(values, number=number))
            elif answer["ok"] is False or not self.document["errors"]:
                self.wrong(steps[number]["title"], in_words(answer))

    def failed(self):
        return bool(self.document["errors"] or self.document["not_put_back"])

    def finished(self, seconds):
        """The document. Before it is made, the limits are put back; no signal ends the program meanwhile."""
        self.document["not_put_back"] = restore(self.options.saved)
        if self.folder_is_new and not self.document["not_put_back"]:
            remove_folder()
        self.held.close()
        return super().finished(seconds)


def values_of(point):
    """The values of a point: `150 W`, `150 or 200 W`, `1005 MHz`."""
    numbers = set()
    for value in [value for rule in point.values() for value in rule.values()]:
        whole = value["graphics_mhz"] if isinstance(value, dict) else value
        numbers.add(whole[1] if isinstance(whole, list) else whole)
    unit = "W" if any("power_limit_w" in rule for rule in point.values()) else "MHz"
    return "%s %s" % (" or ".join("%g" % number for number in sorted(numbers)), unit)


def points_of(text):
    """The points of --points. Raises ValueError with what is wrong."""
    points = json.loads(text)
    if not isinstance(points, list) or not 1 <= len(points) <= MOST_POINTS:
        raise ValueError("a list of 1 to %d points" % MOST_POINTS)
    for point in points:
        if not isinstance(point, dict) or not point:
            raise ValueError("each point is {UUID: {LIMIT: VALUE}}")
        for rule in point.values():
            if not isinstance(rule, dict) or not rule or not set(rule) <= set(KINDS):
                raise ValueError("each limit is one of %s" % ", ".join(KINDS))
            wrong = [key for key, value in rule.items() if not gpu_limits.RULE[key][1](value)]
            if wrong:
                raise ValueError("%s is %s" % (wrong[0], gpu_limits.RULE[wrong[0]][0]))
    return points


def options_of(words):
    parser = parser_of(__doc__)
    parser.add_argument("command", choices=["sweep", "restore"])
    parser.add_argument("--points", help="the points as JSON")
    parser.add_argument("--saved", default=BESIDE, help="the file with what was in force")
    parser.add_argument("--settle-s", type=float, default=30, help="load of each point that does not count (30)")
    parser.add_argument("--seconds", type=float, default=70, help="measured load of each point (70)")
    parser.add_argument("--timeout-s", type=float, default=1800, help="time limit of the whole sweep (1800)")
    nccl_host.add_watched(parser, 120)
    options = parse(parser, words, quick=False, journal=None, step_timeout_s=None)
    if options.command == "sweep":
        if not 0 < options.seconds <= 600 or not 0 < options.settle_s <= 600:
            parser.error("--seconds and --settle-s are up to 600")
        try:
            options.points = points_of(options.points or "")
        except ValueError as error:
            parser.error("--points: %s" % error)
    return options


def main():
    if sys.argv[1:2] == ["--worker"]:
        return nccl_steps.main(sys.argv[2], int(sys.argv[3]), SweepWork)
    options = options_of(sys.argv[1:])
    if os.geteuid():
        sys.exit("%s wants root" % options.command)
    if options.command == "restore":
        return restore_after(options.saved)
    watch = Watch(options, os.path.abspath(__file__))
    return carried_out(Sweep(options, watch), watch)


if __name__ == "__main__":
    sys.exit(main())
