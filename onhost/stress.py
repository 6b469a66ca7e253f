#!/usr/bin/env python3
"""Loads the GPUs of this machine with all that they can do, measures them, and compares their results. Prints a JSON
document.

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
                 "results": [{"gpu", "products": [{"kind", "tflops", "number", SENSORS}], "gb_s": {"memory",
                 "to_device",
                              "from_device"}, "digests": {kind: checksum}, SENSORS}]}],
     "events": [{"at_s", "stage", "gpu", "what": "lost" | "hang" | "error" | "wrong" | "xid", "code", "text"}],
     "supplies": {"source": "ipmi" | "hwmon" | null, "lowest_12v", "lowest_at_s", "watts": {supply: at the highest load
     of all},
                  "words": {supply: its state}},
     "errors": [{"where", "what"}], "left_behind"}

    SENSORS: {"samples", "power_mean_w", "power_max_w", "sm_mean_mhz", "sm_min_mhz", "memory_mean_mhz", "core_max_c",
              "memory_max_c", "reasons": {reason of lower clocks: share of the samples}}
"""

import argparse
import contextlib
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_document
import nccl_host
import nccl_steps
import stress_sensors
import stress_supplies
from nccl_watch import Watch, carried_out, step
from stress_work import StressWork, kinds_of

SHARES = {"alone": 0.25, "together": 0.15, "in step": 0.25}  # of the time; the rest is the soak
STEP_S = 60  # without a word of the process for that long, a step hangs
START_S = 180  # the start of the process and of CUDA, NVML and NCCL on all GPUs, in all
MOST_EVENTS = 200
TICK_S = 15
TOUCH_S = 10
AFTER_LOSS_S = 5  # how long an Xid is looked for after a failure


class Stress(nccl_document.Measurement):
    """One stress; adds its results to `document`."""

    def __init__(self, options, watch):
        self.began = time.monotonic()
        self.sensors, self.log = stress_sensors.Sensors([]), stress_sensors.KernelLog()
        self.supplies = stress_supplies.Supplies(watch.folder, self.began)
        self.known_lost, self.shown_xids = set(), 0
        parts = {"stages": [], "events": [], "supplies": self.supplies.document()}
        super().__init__(options, watch, asked_s=options.seconds, **parts)

    def run(self):
        if not self.looked_at_all():
            return
        self.sensors = stress_sensors.Sensors([gpu["bus_id"] for gpu in self.document["gpus"]])
        for number, gpu in enumerate(self.document["gpus"]):
            gpu.update(self.sensors.limits(number), before=self.sensors.counters(number))
        self.sensors.start()
        self.log.start()
        self.supplies.start()
        total, gpus = self.options.seconds, list(range(len(self.document["gpus"])))
        kinds = [kinds_of(gpu["compute_capability"]) for gpu in self.document["gpus"]]
        parts = {name: total * share / (len(gpus) if name != "in step" else 1) for name, share in SHARES.items()}
        self.phase(
            "alone",
            [self.made("do_alone", "alone, GPU %d" % gpu, [gpu], parts["alone"], kinds[gpu]) for gpu in gpus],
        )
        kind = self.hottest(set.intersection(*map(set, kinds)))
        self.phase(
            "together",
            [
                self.made(
                    "do_together",
                    "together, %d GPU%s" % (number, "s" if number > 1 else ""),
                    gpus[:number],
                    parts["together"],
                    kind,
                )
                for number in range(1, len(gpus) + 1)
            ],
            kind,
        )
        collective = "collective" not in self.options.without
        self.phase("in step", [self.made("do_in_step", "in step", gpus, parts["in step"], kind, collective)], kind)
        left = max(1.0, total * (1 - sum(SHARES.values())), self.began + total - time.monotonic())
        self.phase("soak", [self.made("do_together", "soak", gpus, left, kind)], kind)

    def looked_at_all(self):
        """Loads the libraries and lists the GPUs; whether both worked. Without NCCL the stress has no all-reduce."""
        collective = "collective" not in self.options.without
        look = self.look(collective)
        if collective and "devices" not in look and "libnccl" in (look["error"] or ""):
            without, look = look["error"], self.look(False)
            self.options.without.append("collective")
            if "devices" in look and not look["lacking"] and look["devices"]:
                self.wrong("NCCL", without)
        if not self.looked(look, (*nccl_document.GPU, "compute_capability")):
            return False
        for number, gpu in enumerate(self.document["gpus"]):
            gpu.update(
                self.sensors.limits(number), before=self.sensors.counters(number), after=self.sensors.counters(number)
            )
        return True

    def made(self, do, title, gpus, seconds, *arguments):
        """A step of a stage; GPUs that are lost meanwhile are taken out of those of a stage of several."""
        alone = do == "do_alone"
        ranks = list(gpus)
        words = [gpus[0] if alone else ranks, seconds, *arguments, self.options.marks]
        made = step(do[len("do_") :], title, title, words, gpus if alone else [], None if alone else ranks, STEP_S)
        return dict(made, init_s=120)

    # --- stages

    def phase(self, stage, steps, kind=None):
        """Runs the steps of a stage and adds what they measured."""
        steps = [one for one in steps if one["ranks"] is None or one["ranks"]]
        self.sensors.forget()
        began = time.monotonic()
        ticker = Ticker(stage, self.sensors)
        ticker.start()
        try:
            answers = self.watch.run(steps)
        finally:
            ticker.done.set()
        ended = time.monotonic()
        failed = [one["id"] for one in steps if answers[one["id"]]["outcome"] in ("hang", "error")]
        if failed:
            self.wait_for_xids()
        for one in steps:
            answer = answers[one["id"]]
            value = answers.get(one["id"] + " so far") or {}
            value = answer if "gpus" in answer else value
            start = value.get("began", began)
            self.add_stage(stage, one, kind, answer, value, start, value.get("ended", ended))
        self.add_losses(stage)
        self.add_xids(stage)

    def add_stage(self, stage, one, kind, answer, value, start, end):
        """Adds a step to the document, and its wrong results and its failure to the events."""
        gpus = [int(gpu) for gpu in value.get("gpus", {})] or list(one["ranks"] or one["gpus"])
        made = {
            "stage": stage,
            "gpus": gpus,
            "kind": kind,
            "began_s": self.after(start),
            "seconds": round(end - start, 2),
            "outcome": answer["outcome"],
            "error": answer["error"],
            "all_reduce_gb_s": value.get("all_reduce_gb_s"),
            "results": [],
        }
        if answer["outcome"] != "not run":
            made["results"] = [self.result(int(gpu), found, start, end) for gpu, found in value.get("gpus", {}).items()]
        self.document["stages"].append(made)
        for gpu, found in value.get("gpus", {}).items():
            for wrong in found["wrong"]:
                self.event(wrong["at"], one["title"], int(gpu), "wrong", None, wrong["text"])
        if answer["outcome"] in ("hang", "error"):
            self.event(time.monotonic(), one["title"], None, answer["outcome"], answer.get("code"), answer["error"])

    def result(self, gpu, found, start, end):
        """The results of one GPU in a step, with what its sensors said while it multiplied."""
        products = []
        for kind, one in found["kinds"].items():
            sensors = self.sensors.between(gpu, *one["span"])
            products.append(dict(sensors, kind=kind, tflops=round(one["tflops"], 4), number=one["products"]))
        speeds = {
            name: round(found["gb_s"][name], 3) if name in found["gb_s"] else None
            for name in ("memory", "to_device", "from_device")
        }
        of_step = dict(self.sensors.between(gpu, start, end), gpu=gpu, products=products)
        return dict(of_step, gb_s=speeds, digests=found["digests"])

    def hottest(self, kinds):
        """The kind of product that took the most power of one GPU; without sensors the first of FP16, FP32."""
        watts = {}
        for made in self.document["stages"]:
            for one in made["results"]:
                for product in one["products"]:
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
                return title_of(made)
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

    def wait_for_xids(self):
        """Gives the kernel log a moment: its line may come after the error of the program."""
        until = time.monotonic() + AFTER_LOSS_S
        while time.monotonic() < until and len(self.log.found) == self.shown_xids:
            time.sleep(0.1)

    def add_xids(self, stage):
        """An event for each Xid since the last stage."""
        places = {nccl_host.place(gpu["bus_id"]): gpu["index"] for gpu in self.document["gpus"]}
        found = list(self.log.found)
        for at, bus_id, code, text in found[self.shown_xids :]:
            whole = bus_id if "." in bus_id else bus_id + ".0"
            gpu = places.get(nccl_host.place(whole)) if whole.count(":") == 2 else None
            self.event(at, self.stage_at(at, stage), gpu, "xid", code, text)
        self.shown_xids = len(found)

    def failed(self):
        return bool(self.document["events"]) or any(one["where"] != "NCCL" for one in self.document["errors"])

    def finished(self, seconds):
        for number, gpu in enumerate(self.document["gpus"]):
            gpu["after"] = self.sensors.counters(number)
        self.add_xids("the end")
        self.sensors.stop()
        self.log.stop()
        self.supplies.stop()
        self.document["supplies"] = self.supplies.document()
        return super().finished(seconds)


class Alive(threading.Thread):
    """Touches a file every TOUCH_S, so that the recorder which watches it goes on. It makes no file: one that is gone
    stays gone."""

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
            last = [gpu.samples[-1] for gpu in self.sensors.gpus.values() if gpu.samples and not gpu.lost]
            words = ["%.0f s" % (time.monotonic() - self.began)]
            for name, text, of in (
                ("power_w", "%.0f W in all", sum),
                ("core_c", "hottest at %.0f C", max),
                ("sm_mhz", "slowest at %.0f MHz", min),
            ):
                values = [value for value in (getattr(one, name) for one in last) if value is not None]
                words += [text % of(values)] if values else []
            nccl_host.progress("%s: %s" % (self.stage, ", ".join(words)))


def title_of(made):
    """The title of a stage of the document."""
    if made["stage"] == "alone":
        return "alone, GPU %s" % ", ".join(map(str, made["gpus"]))
    if made["stage"] == "together":
        return "together, %d GPU%s" % (len(made["gpus"]), "s" if len(made["gpus"]) > 1 else "")
    return made["stage"]


def options_of(words):
    parser = argparse.ArgumentParser(
        prog="stress.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600, help="duration of all stages (600)")
    parser.add_argument("--libraries", metavar="DIR", help="load the libraries from this folder or below")
    parser.add_argument("--without", default="", help="parts to leave out: collective")
    parser.add_argument(
        "--marks", metavar="FILE", help="append the begin and the end of each stage to this file, with fsync"
    )
    parser.add_argument(
        "--alive", metavar="FILE", help="touch this file every %d s until the end: a recorder ends without it" % TOUCH_S
    )
    parser.add_argument("--timeout-s", type=float, help="time limit of the whole stress (default: %d more)" % START_S)
    parser.add_argument("--step-timeout-s", type=float, help="what counts as a hang (default: %d)" % STEP_S)
    options = parser.parse_args(words)
    options.without = [word for word in options.without.split(",") if word]
    if [word for word in options.without if word != "collective"]:
        parser.error("--without knows collective")
    if options.libraries and not os.path.isdir(options.libraries):
        parser.error("--libraries %s: no such folder" % options.libraries)
    if not 1 <= options.seconds <= 86400:
        parser.error("--seconds is from 1 to 86400")
    options.timeout_s = options.timeout_s or options.seconds + START_S
    options.quick, options.journal = False, None
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
