#!/usr/bin/env python3
"""Loads the GPUs of this machine with all that they can do, measures them, compares their results. Prints JSON.

    stress.py                   ten minutes
    stress.py --seconds 60      shorter stages

Needs what nccl_p2p.py needs, cuBLAS 11 or newer, and nothing that is installed for it. The stages: `alone`, one GPU
after the other; `together`, the first GPU, the first two, and so on to all at once; `in step`, all GPUs in the pattern
of training: products, an all-reduce between them, and pauses, in which the power of all falls and rises at once;
`soak`, products on all GPUs for the rest of the time. Each kind of product is made of the same numbers every time, so
its bits must be the same, every time and on every GPU of the same model. A GPU that falls off the bus or hangs is a
result; the others go on without it.

Exit status: 0 nothing was wrong, 1 something was, 2 it could not run. The document:

    {"schema": 1, "outcome": "ok" | "failed" | "could not run", "started", "seconds", "asked_s", "versions",
     "libraries",
     "gpus": [{"index", "bus_id", "uuid", "name", "compute_capability", "power_limit_w", "sm_most_mhz", "slowdown_c",
               "memory_most_c", "before", "after": {"pcie_replays", "ecc_corrected", "ecc_uncorrected"}}],
     "stages": [{"stage", "gpus", "kind" (null: several), "began_s", "seconds", "outcome", "error", "all_reduce_gb_s",
                 "results": [{"gpu", "products": [{"kind", "tflops", "number", SENSORS}],
                              "gb_s": {"memory", "to_device", "from_device"}, "digests": {kind: checksum}, SENSORS}]}],
     "events": [{"at_s", "stage", "gpu", "what": "lost" | "hang" | "error" | "wrong" | "xid", "code", "text"}],
     "supplies": {"source": "ipmi" | "hwmon" | null, "lowest_12v", "lowest_at_s",
                  "watts": {supply: at the highest load of all}, "words": {supply: its state}},
     "errors": [{"where", "what"}], "left_behind"}

    SENSORS: {"samples", "power_mean_w", "power_max_w", "sm_mean_mhz", "sm_min_mhz", "memory_mean_mhz", "core_max_c",
              "memory_max_c", "reasons": {reason of lower clocks: share of the samples}}
"""

import contextlib
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_steps
import stress_sensors
from nccl_measurement import GPU, Measurement, carried_out, parse, parser_of, parts_without
from nccl_watch import Watch, step
from stress_work import StressWork, kinds_of

SHARES = {"alone": 0.25, "together": 0.15, "in step": 0.25}  # of the time; the rest is the soak
STEP_S = 60  # without a word of the process for that long, a step hangs
START_S = 180  # the start of the process and of CUDA, NVML and NCCL on all GPUs, in all
MOST_EVENTS = 200
TICK_S = 15
TOUCH_S = 10
AFTER_LOSS_S = 5  # how long an Xid is looked for after a failure


class Stress(Measurement):
    """One stress; adds its results to `document`."""

    def __init__(self, options, watch):
        self.began = time.monotonic()
        self.sensors, self.log = stress_sensors.Sensors([]), stress_sensors.KernelLog()
        self.supplies = stress_sensors.Supplies(watch.folder, self.began)
        self.known_lost, self.shown_xids = set(), 0
        parts = {"stages": [], "events": [], "supplies": self.supplies.document()}
        super().__init__(options, watch, asked_s=options.seconds, **parts)

    def run(self):
        if not self.look_at_all():
            return
        self.sensors = stress_sensors.Sensors([gpu["bus_id"] for gpu in self.document["gpus"]])
        for number, gpu in enumerate(self.document["gpus"]):
            gpu.update(self.sensors.limits(number), before=self.sensors.counters(number))
        self.sensors.start()
        self.log.start()
        self.supplies.thread.start()
        total, gpus = self.options.seconds, list(range(len(self.document["gpus"])))
        kinds = [kinds_of(gpu["compute_capability"]) for gpu in self.document["gpus"]]
        parts = {name: total * share / (len(gpus) if name != "in step" else 1) for name, share in SHARES.items()}
        alone = [self.step("alone", title_of("alone", [gpu]), [gpu], parts["alone"], kinds[gpu]) for gpu in gpus]
        self.phase("alone", alone)
        kind = self.hottest(set.intersection(*map(set, kinds)))
        first = [gpus[:number] for number in range(1, len(gpus) + 1)]
        together = [self.step("together", title_of("together", some), some, parts["together"], kind) for some in first]
        self.phase("together", together, kind)
        collective = "collective" not in self.options.without
        self.phase("in step", [self.step("in_step", "in step", gpus, parts["in step"], kind, collective)], kind)
        rest_s = max(1.0, total * (1 - sum(SHARES.values())), self.began + total - time.monotonic())
        self.phase("soak", [self.step("together", "soak", gpus, rest_s, kind)], kind)

    def look_at_all(self):
        """Loads the libraries and lists the GPUs; whether both worked. Without NCCL the stress has no all-reduce."""
        collective = "collective" not in self.options.without
        look = self.look(collective)
        if collective and "devices" not in look and "libnccl" in (look["error"] or ""):
            without, look = look["error"], self.look(False)
            self.options.without.append("collective")
            if "devices" in look and not look["lacking"] and look["devices"]:
                self.wrong("NCCL", without)
        if not self.looked(look, (*GPU, "compute_capability")):
            return False
        for number, gpu in enumerate(self.document["gpus"]):
            counters = self.sensors.counters(number)
            gpu.update(self.sensors.limits(number), before=counters, after=counters)
        return True

    def step(self, do, title, gpus, seconds, *arguments):
        """A step of a stage; GPUs that are lost meanwhile are taken out of those of a stage of several."""
        alone, ranks = do == "alone", list(gpus)
        words = [gpus[0] if alone else ranks, seconds, *arguments, self.options.marks]
        return step(do, title, title, words, gpus if alone else [], None if alone else ranks, STEP_S)

    # --- stages

    def phase(self, stage, steps, kind=None):
        """Runs the steps of a stage and adds what they measured."""
        steps = [task for task in steps if task["ranks"] is None or task["ranks"]]
        self.sensors.forget_samples()
        began = time.monotonic()
        ticker = Ticker(stage, self.sensors)
        ticker.start()
        try:
            answers = self.watch.run(steps)
        finally:
            ticker.done.set()
        ended = time.monotonic()
        failed = [task["id"] for task in steps if answers[task["id"]]["outcome"] in ("hang", "error")]
        until = time.monotonic() + (AFTER_LOSS_S if failed else 0)  # a line of the kernel may come after the error
        while time.monotonic() < until and len(self.log.found) == self.shown_xids:
            time.sleep(0.1)
        for task in steps:
            answer = answers[task["id"]]
            value = answers.get(task["id"] + " so far") or {}
            value = answer if "gpus" in answer else value
            start = value.get("began", began)
            self.add_stage(stage, task, kind, answer, value, start, value.get("ended", ended))
        self.add_losses(stage)
        self.add_xids(stage)

    def add_stage(self, stage, task, kind, answer, value, start, end):
        """Adds a step to the document, and its wrong results and its failure to the events."""
        by_gpu = {int(gpu): measured for gpu, measured in value.get("gpus", {}).items()}
        made = {"stage": stage, "gpus": list(by_gpu) or list(task["ranks"] or task["gpus"]), "kind": kind}
        made.update(began_s=self.after(start), seconds=round(end - start, 2), outcome=answer["outcome"])
        made.update(error=answer["error"], all_reduce_gb_s=value.get("all_reduce_gb_s"), results=[])
        if answer["outcome"] != "not run":
            made["results"] = [self.result(gpu, measured, start, end) for gpu, measured in by_gpu.items()]
        self.document["stages"].append(made)
        for gpu, measured in by_gpu.items():
            for wrong in measured["wrong"]:
                self.event(wrong["at"], task["title"], gpu, "wrong", None, wrong["text"])
        if answer["outcome"] in ("hang", "error"):
            self.event(time.monotonic(), task["title"], None, answer["outcome"], answer.get("code"), answer["error"])

    def result(self, gpu, measured, start, end):
        """The results of one GPU in a step, with what its sensors said while it multiplied."""
        products = []
        for kind, product in measured["kinds"].items():
            sensors = self.sensors.between(gpu, *product["span"])
            products.append(dict(sensors, kind=kind, tflops=round(product["tflops"], 4), number=product["products"]))
        speeds = dict.fromkeys(("memory", "to_device", "from_device"))
        speeds.update((name, round(speed, 3)) for name, speed in measured["gb_s"].items())
        of_step = dict(self.sensors.between(gpu, start, end), gpu=gpu, products=products)
        return dict(of_step, gb_s=speeds, digests=measured["digests"])

    def hottest(self, kinds):
        """The kind of product that took the most power of one GPU; without sensors the first of FP16, FP32."""
        watts = {}
        for made in self.document["stages"]:
            for result in made["results"]:
                for product in result["products"]:
                    if product["kind"] in kinds and product["power_mean_w"] is not None:
                        watts.setdefault(product["kind"], []).append(product["power_mean_w"])
        if not watts:
            return "fp16" if "fp16" in kinds else "fp32"
        means = {kind: sum(values) / len(values) for kind, values in watts.items()}
        most = max(means.values())
        return next(kind for kind in ("fp32", "fp16", "tf32", "fp64") if means.get(kind, 0) >= 0.98 * most)

    # --- events

    def after(self, at):
        return round(max(0.0, at - self.began), 2)

    def event(self, at, stage, gpu, what, code, text):
        events = self.document["events"]
        if len(events) < MOST_EVENTS:
            made = {"at_s": self.after(at), "stage": stage, "gpu": gpu, "what": what, "code": code, "text": text}
            events.append(made)

    def stage_at(self, at, otherwise):
        """The title of the stage at that time."""
        for made in reversed(self.document["stages"]):
            if made["outcome"] != "not run" and made["began_s"] <= self.after(at):
                return title_of(made["stage"], made["gpus"])
        return otherwise

    def add_losses(self, stage):
        """An event for each GPU that was lost since the last stage, as NVML or a process saw it first."""
        seen, now = self.sensors.lost(), time.monotonic()
        for gpu in sorted({*seen, *self.watch.lost} - self.known_lost):
            self.known_lost.add(gpu)
            at = seen.get(gpu, now)
            text = self.watch.lost.get(gpu) or "NVML does not reach GPU %d any more" % gpu
            self.watch.lost.setdefault(gpu, text)
            self.event(at, self.stage_at(at, stage), gpu, "lost", None, text)

    def add_xids(self, stage):
        """An event for each Xid since the last stage."""
        places = {nccl_host.place(gpu["bus_id"]): gpu["index"] for gpu in self.document["gpus"]}
        xids = list(self.log.found)
        for at, bus_id, code, text in xids[self.shown_xids :]:
            self.event(at, self.stage_at(at, stage), places.get(nccl_host.place(bus_id)), "xid", code, text)
        self.shown_xids = len(xids)

    def failed(self):
        return bool(self.document["events"]) or any(one["where"] != "NCCL" for one in self.document["errors"])

    def finished(self, seconds):
        for number, gpu in enumerate(self.document["gpus"]):
            gpu["after"] = self.sensors.counters(number)
        self.add_xids("the end")
        self.sensors.stop()
        self.log.stop()
        self.supplies.thread.ended.set()
        self.document["supplies"] = self.supplies.document()
        return super().finished(seconds)


class Alive(threading.Thread):
    """Touches a file every TOUCH_S, so that the recorder which watches it goes on. It does not make the file."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.done = path, threading.Event()

    def run(self):
        while self.path:
            with contextlib.suppress(OSError):
                os.utime(self.path)
            if self.done.wait(TOUCH_S):
                return


class Ticker(threading.Thread):
    """Says every TICK_S what the GPUs draw and how hot they are, until `done` is set."""

    def __init__(self, stage, sensors):
        super().__init__(daemon=True)
        self.stage, self.sensors, self.done, self.began = stage, sensors, threading.Event(), time.monotonic()

    def run(self):
        while not self.done.wait(TICK_S):
            last = [gpu.samples[-1][1] for gpu in self.sensors.gpus.values() if gpu.samples and not gpu.lost]
            words = ["%.0f s" % (time.monotonic() - self.began)]
            for place, text, of in (
                (stress_sensors.POWER, "%.0f W in all", sum),
                (stress_sensors.CORE_C, "hottest at %.0f C", max),
                (stress_sensors.SM_MHZ, "slowest at %.0f MHz", min),
            ):
                values = [sample[place] for sample in last if sample[place] is not None]
                words += [text % of(values)] if values else []
            nccl_host.progress("%s: %s" % (self.stage, ", ".join(words)))


def title_of(stage, gpus):
    """The title of a step of a stage with these GPUs."""
    if stage == "alone":
        return "alone, GPU %s" % ", ".join(map(str, gpus))
    if stage == "together":
        return "together, %d GPU%s" % (len(gpus), "s" if len(gpus) > 1 else "")
    return stage


def options_of(words):
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="duration of all stages (600)")
    parser.add_argument("--without", default="", help="parts to leave out: collective")
    parser.add_argument("--marks", metavar="FILE", help="append the begin and the end of each stage to this file")
    parser.add_argument("--alive", metavar="FILE", help="touch this file every %d s: a recorder ends without" % TOUCH_S)
    parser.add_argument("--timeout-s", type=float, help="time limit of the whole stress (default: %d more)" % START_S)
    parser.add_argument("--step-timeout-s", type=float, help="what counts as a hang (default: %d)" % STEP_S)
    options = parse(parser, words, quick=False, journal=None)
    options.without = parts_without(parser, options.without, ("collective",))
    if not 1 <= options.seconds <= 86400:
        parser.error("--seconds is from 1 to 86400")
    options.timeout_s = options.timeout_s or options.seconds + START_S
    return options


def main():
    if sys.argv[1:2] == ["--worker"]:
        return nccl_steps.main(sys.argv[2], int(sys.argv[3]), StressWork)
    options = options_of(sys.argv[1:])
    Alive(options.alive).start()
    watch = Watch(options, os.path.abspath(__file__))
    return carried_out(Stress(options, watch), watch)


if __name__ == "__main__":
    sys.exit(main())
