#!/usr/bin/env python3
"""Guard the GPUs of this machine: read each second, keep the last hour, and act in steps when a threshold holds.

    guard.py run [--config /etc/rigwright/guard.json]       from gpu-guard.service
    guard.py check [--config /etc/rigwright/guard.json]     say whether the configuration is right

It needs root, and beside this file guard_*.py, recorder.py and pynvml.py of nvidia-ml-py. It writes its
records to /var/lib/rigwright/guard (guard_store.py), its state to /run/rigwright-guard/state.json, and what it does to
stdout. Exit status: 0 on SIGTERM; 2 the configuration is wrong, or the folder cannot be written.

The configuration, of which only "thresholds" and "steps" are needed; a threshold without a number takes the GPU's own:

    {"thresholds": {"gpu_temperature_c": {"above": 90, "for_s": 10}, "memory_temperature_c": {"for_s": 10},
     "fan_rpm_min": {"below": 500, "for_s": 30}}, "steps": ["lower-limit", "stop", "power-off"], "step_s": 60,
     "lower_limit_w": 150, "stop": ["training.service"], "textfile":
     "/var/lib/prometheus/node-exporter/rigwright-guard.prom", "notify": {"command": "/usr/local/bin/tell", "webhook":
     "https://...", "mail": "root"}, "positions": {"0000:06:00.0": "SXM2-1"}}

guard_steps.py decides; guard_sensors.py reads; guard_acts.py acts and tells. docs/guide/guard.md describes it for the
owner.
"""

import argparse
import json
import os
import re
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guard_acts
import guard_metrics
import guard_sensors
import guard_steps
import guard_store
import recorder

ROOT = recorder.ROOT
CONFIG = ROOT + "/etc/rigwright/guard.json"
FOLDER = ROOT + "/var/lib/rigwright/guard"
RUN = ROOT + "/run/rigwright-guard"
PERIOD_S = 1.0
STATE_S, OFFER_S = 5.0, 15.0
READY_S = 15.0  # systemd counts the unit as started when the GPUs are read, or after so long
QUIET_S = 600.0  # an event of the same kind, other than a step, is told again after so long; all are recorded
WATTS_OLD_S = 35.0  # a reading of the supplies counts for so long
NOTHING_S = 60.0  # the driver may be absent for so long after the start before that is an event
TOLD = {  # the events that are told; others are only recorded
    *guard_steps.STEPS, "over", "held-back", "calm", "gpu-hung", "gpu-lost", "oom-kill", "machine-check",
    "memory-error", "ring", "failed",
}  # fmt: skip


# --- the configuration


def number(low, high):
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def text(pattern):
    return lambda value: isinstance(value, str) and re.match(pattern + r"\Z", value) is not None


def mapping(value):
    return isinstance(value, dict)


STEPS = guard_steps.STEPS
UNIT = text(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,200}\.(service|slice|scope|target|socket|timer|mount)")
RULES = {  # key -> (expected, test)
    "steps": (
        "of %s, in this order" % ", ".join(STEPS),
        lambda value: value == [step for step in STEPS if step in value],
    ),
    "step_s": ("1 to 3600", number(1, 3600)),
    "lower_limit_w": ("1 to 2000", number(1, 2000)),
    "stop": (
        "a list of units of systemd",
        lambda value: isinstance(value, list) and len(value) <= 50 and all(map(UNIT, value)),
    ),
    "textfile": ("a path that begins with / and ends with .prom", text(r"/[^\0\n]{1,200}\.prom")),
    "thresholds": ("a mapping of %s" % ", ".join(guard_steps.KINDS), mapping),
    "notify": ("a mapping of command, webhook, mail", mapping),
    "positions": ("names by bus id", lambda value: mapping(value) and all(map(text(r".{1,64}"), value.values()))),
}
RANGES = {guard_steps.GPU: (40, 110), guard_steps.MEMORY: (40, 120), guard_steps.FAN: (50, 30000)}
WAYS = {
    "command": ("a path that begins with /", text(r"/[^\0\n]{1,400}")),
    "webhook": ("http:// or https://", text(r"https?://[^\s]{1,2000}")),
    "mail": ("an address or a user", text(r"[A-Za-z0-9._+][A-Za-z0-9._+-]{0,63}(@[A-Za-z0-9.-]{1,200})?")),
}


def mistakes(config):
    """A text for each mistake in a configuration. The address of a webhook is in none."""
    if not isinstance(config, dict):
        yield "no JSON object"
        return
    yield from ("unknown key: %s" % key for key in sorted(set(config) - set(RULES)))
    yield from ("%s is missing" % key for key in ("thresholds", "steps") if key not in config)
    for key, (wanted, right) in RULES.items():
        if key in config and not right(config[key]):
            yield "%s: expected %s" % (key, wanted)
    for kind, given in config["thresholds"].items() if isinstance(config.get("thresholds"), dict) else ():
        if kind not in guard_steps.KINDS or not isinstance(given, dict):
            yield "thresholds: %s is not one of %s with a mapping" % (kind, ", ".join(guard_steps.KINDS))
            continue
        side, (low, high) = guard_steps.KINDS[kind], RANGES[kind]
        yield from ("unknown key: %s.%s" % (kind, key) for key in sorted(set(given) - {side, "for_s"}))
        if given.get(side) is not None and not number(low, high)(given[side]):
            yield "%s.%s: expected %d to %d" % (kind, side, low, high)
        if not number(1, 600)(given.get("for_s")):
            yield "%s.for_s: expected 1 to 600" % kind
    for way, value in config.get("notify", {}).items() if isinstance(config.get("notify", {}), dict) else ():
        if way not in WAYS:
            yield "unknown key: notify.%s" % way
        elif not WAYS[way][1](value):
            yield "notify.%s: expected %s" % (way, WAYS[way][0])


def load_config(path):
    """Reads and checks the configuration. A mistake ends the program with status 2."""
    try:
        with open(path) as file:
            config = json.load(file)
        wrong = "; ".join(mistakes(config))
    except (OSError, ValueError) as error:
        wrong = getattr(error, "strerror", None) or "no JSON"
    if wrong:
        sys.stderr.write("%s: %s; invoke provision writes it again\n" % (path, wrong))
        sys.exit(2)
    return config


# --- the loop


class Guard:
    """One guard: `tick` reads once and acts."""

    def __init__(self, config, path, after_boot_s, least_free_mib, boot_id=None, gpus=None, say=print):
        self.config, self.say = config, say
        self.steps = guard_steps.Steps(config["thresholds"], config["steps"], config.get("step_s", 60), after_boot_s)
        self.gpus = gpus or guard_sensors.GpuReader()
        self.machine, self.kernel = guard_sensors.Machine(RUN), guard_sensors.Kernel()
        self.clock = guard_sensors.Clock()
        self.acts = guard_acts.Acts(path, RUN, {way: value for way, value in config.get("notify", {}).items() if value})
        self.boot_id = (boot_id or recorder.content(ROOT + "/proc/sys/kernel/random/boot_id")).replace("-", "")
        header = {"schema": 1, "boot_id": self.boot_id, "t": round(time.time(), 3), "m": round(time.monotonic(), 3)}
        self.store = guard_store.Store(FOLDER, header, config.get("textfile"), least_free_mib)
        self.energy = guard_store.Energy(guard_store.read(self.store.path("energy.json")))
        self.hours = guard_store.Hours()
        self.started, self.samples, self.states, self.gpus_why = time.monotonic(), [], {}, None
        self.sampled_at, self.drawn = guard_store.NEVER, {}
        self.fans, self.rails, self.watts, self.told_at = {}, {}, (None, guard_store.NEVER), {}
        self.counters, self.limits, self.notes = dict(self.kernel.counters), None, {}
        self.state_at, self.offered_at = guard_store.NEVER, self.started

    def begin(self):
        self.store.start()
        self.event("started", "the guard started")
        if self.energy.damaged:
            self.event("energy", "energy.json was damaged; the months are counted anew")

    def event(self, kind, words):
        """Records what happened or was done, and tells it unless one of its kind was told a short time ago."""
        now, t = time.monotonic(), time.time()
        words = words[:600]
        self.say("%s: %s" % (kind, words))
        self.store.add_event({"t": round(t, 3), "boot_id": self.boot_id, "event": kind, "text": words})
        self.store.add({"t": round(t, 3), "m": round(now, 3), "event": kind, "text": words})
        often = kind in guard_steps.STEPS or now - self.told_at.get(kind, -QUIET_S) >= QUIET_S
        if kind == guard_steps.POWER_OFF:
            self.acts.power_off(self.message(kind, words, t), now)
        elif kind in TOLD and often:
            self.told_at[kind] = now
            self.acts.tell(self.message(kind, words, t))

    def message(self, kind, words, t):
        """What the owner is told: no secret, no name of a user or a program but that of a killed process."""
        when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(t))
        message = {"event": kind, "machine": socket.gethostname()[:64], "text": words, "time": when}
        return dict(message, readings=self.readings())

    def _pairs(self):
        """Each GPU with its last sample, while samples arrive."""
        return [(gpu, self.samples[number]) for number, gpu in enumerate(self.gpus.gpus[: len(self.samples)])]

    def readings(self):
        """The last readings in words."""
        texts = {}
        for gpu, sample in self._pairs():
            name = "GPU %s" % self._name(gpu["index"])
            if not isinstance(sample, list):
                texts[name] = sample or "no reading"
                continue
            watts, core_c, memory_c, fan = sample[0], sample[3], sample[4], sample[6]
            parts = ["%s C" % core_c] if core_c is not None else []
            parts += ["memory %s C" % memory_c] if memory_c else []
            parts += ["%s W of %s W" % (watts, gpu["limit_w"])] if watts is not None else []
            parts += ["fan %s %%" % fan] if fan is not None else []
            texts[name] = ", ".join(parts) or "no reading"
        if not texts:
            texts["GPUs"] = self.gpus.why or "none"
        texts.update({"fan %s" % name: "%d RPM" % value for name, value in list(self.fans.items())[:32]})
        if self.rails.get("12V") is not None:
            texts["12 V"] = "%.2f V" % self.rails["12V"]
        if self.watts[0] is not None:
            texts["machine"] = "%g W" % self.watts[0]
        return texts

    def tick(self, now, t, since_boot_s):
        """Reads once, decides and acts."""
        line = {"t": round(t, 3), "m": round(now, 3)}
        jump = self.clock.jump()
        if jump:
            self.event("clock", "the clock was set by %+d s" % jump)
        new = {**self._gpus(now, line), **self._machine(now, line)}
        self._kernel(now, line)
        self.store.add(line)
        for one in self.steps.look(now, since_boot_s, new):
            self._do(one["event"], one["why"], now)
        for name, problem in self.acts.tick(now):
            self.event("not-told" if name == "notify" else "failed", "%s: %s" % (name, problem))
        self._account(now, t)
        ring, metrics = "the ring of the last hour is", "the metrics are"
        for kind, what, why in (
            ("ring", ring, self.store.ring_error),
            ("textfile", metrics, self.store.textfile_error),
        ):
            self._note(kind, why and "%s not written: %s" % (what, why), "%s written again" % what)
        if now - self.state_at >= STATE_S:
            self.state_at = now
            self.write_state(t)

    def _note(self, kind, problem, over):
        """Records a problem once when it begins, and once that it is over."""
        before, self.notes[kind] = self.notes.get(kind), problem
        if problem and not before:
            self.event(kind, problem)
        elif before and not problem:
            self.event(kind, over)

    def _gpus(self, now, line):
        samples = self.gpus.take(now)
        for said in self.gpus.take_lowered():
            name = self._name(said["index"])
            if "error" in said:
                self.event("failed", "the limit of %s was not lowered: %s" % (name, said["error"]))
            else:
                self.event("lowered", "%s: power limit %g W -> %g W" % (name, said["from_w"], said["to_w"]))
        if samples == "hung":
            samples = ["hung"] * len(self.gpus.gpus)
        if self.gpus.why != self.gpus_why and (self.gpus.gpus or now - self.started > NOTHING_S):
            self.gpus_why = self.gpus.why
            if self.gpus.why:
                self.event("gpu-hung" if self.gpus.gpus else "no-gpus", self.gpus.why)
        if samples is None:
            if now - self.sampled_at > guard_sensors.HUNG_S:
                self.samples = []
            return {}
        self.samples, self.sampled_at = samples, now
        line["g"] = samples
        limits = [gpu["limit_w"] for gpu in self.gpus.gpus]
        if limits != self.limits:
            self.limits = line["limits"] = limits
        readings = {}
        for number, sample in enumerate(samples):
            name = self._name(number)
            self._note_state(name, sample)
            if isinstance(sample, list):
                gpu = self.gpus.gpus[number]
                readings[(guard_steps.GPU, name)] = (sample[3], gpu.get("slowdown_c"))
                readings[(guard_steps.MEMORY, name)] = (sample[4], gpu.get("memory_most_c"))
        return readings

    def _name(self, number):
        """A GPU's position and bus id; its number where it has no bus id."""
        bus_id = self.gpus.gpus[number]["bus_id"] if number < len(self.gpus.gpus) else None
        position = self.config.get("positions", {}).get(bus_id)
        return " ".join(filter(None, (position, bus_id or "number %d" % number)))

    def _note_state(self, name, sample):
        """Records that a GPU hangs, is lost, or answers again."""
        if sample is None:
            return
        state = "" if isinstance(sample, list) else sample
        before, self.states[name] = self.states.get(name, ""), state
        if state == before or (state == "hung" and self.gpus.why):
            return
        if state:
            self.event("gpu-%s" % state, "GPU %s %s" % (name, "does not answer" if state == "hung" else "is lost"))
        else:
            self.event("gpu-back", "GPU %s answers again" % name)

    def _machine(self, now, line):
        read = self.machine.take(now)
        if read is None:
            return {}
        if read.get("ipmi") == "hung":
            line["ipmi"] = "hung"
            self._note("bmc", "the management controller does not answer", "")
            return {}
        self._note("bmc", None, "the management controller answers again")
        line.update(read)
        found, self.rails = read["ipmi"], read["ipmi"]
        if "psu" in found:
            self.watts = (guard_sensors.machine_watts(found["psu"]), now)
        fans = found.get("fans") or {}
        if read.get("from") == "hwmon":  # a header without a fan reads 0 there
            fans = {name: value for name, value in fans.items() if value or name in self.steps.turned}
        self.fans = fans or self.fans
        return {(guard_steps.FAN, name): (value, None) for name, value in fans.items()}

    def _kernel(self, now, line):
        for kind, words in self.kernel.take(now):
            self.event(kind, words)
        if self.kernel.counters != self.counters:
            more = self.kernel.counters["edac_uncorrected"] - self.counters["edac_uncorrected"]
            if more > 0:
                self.event("memory-error", "%d uncorrected errors of the main memory (EDAC)" % more)
            self.counters = line["k"] = dict(self.kernel.counters)

    def _do(self, event, why, now):
        if event == guard_steps.LOWER_LIMIT:
            watts = self.config.get("lower_limit_w")
            to = "to %g W" % watts if watts is not None else "to the lowest that each GPU has"
            self.event(event, "the power limit of all GPUs is lowered %s: %s" % (to, why))
            if not self.gpus.lower(watts):
                problem = self.gpus.why or "no process asks the driver"
                self.event("failed", "the power limit cannot be lowered: %s" % problem)
        elif event == guard_steps.STOP:
            units = self.config.get("stop", [])
            what = "stops " + ", ".join(units) if units else "nothing is named to be stopped"
            self.event(event, "%s: %s" % (what, why))
            if units:
                self.acts.stop(units, now)
        elif event == guard_steps.POWER_OFF:
            self.event(event, "the machine is powered off: %s" % why)
        else:
            self.event(event, why)

    def _account(self, now, t):
        """Adds up energy and hours, and offers the metrics."""
        new = self._pairs() if self.sampled_at == now else []
        for gpu, one in new:
            if isinstance(one, list) and one[0] is not None:
                self.drawn[gpu["index"]] = (one[0], now)
        watts = [power_w for power_w, at in self.drawn.values() if now - at <= guard_sensors.HUNG_S]
        self.energy.add(now, sum(watts) if watts else None, self._machine_w(now))
        self.energy.book(t)
        hour = self.hours.ended(t)
        for gpu, one in new:
            if isinstance(one, list) and gpu["uuid"]:
                heat = one[3] if guard_steps.plausible(guard_steps.GPU, one[3]) else None
                self.hours.add(t, gpu["uuid"], heat, one[0])
        if hour or now - self.offered_at >= OFFER_S:
            self.offered_at = now
            self.offer(now, t, hour)

    def heard(self):
        """Whether the GPUs were read, or the driver said why they are not."""
        return bool(self.samples) or self.gpus.process is None

    def offer(self, now, t, hour=None):
        """Gives the energy, the metrics and the line of an hour to the store."""
        self.store.offer(self.energy.text(), guard_metrics.text(self._metrics(t, self._machine_w(now))), hour)

    def _machine_w(self, now):
        return self.watts[0] if now - self.watts[1] <= WATTS_OLD_S else None

    def _metrics(self, t, machine_w):
        yield "reading_time_seconds", {}, t
        yield "ring_written", {}, int(self.store.ring_error is None)
        yield "steps_made", {}, self.steps.made
        yield "machine_power_watts", {}, machine_w
        for gpu, one in self._pairs():
            labels = {"bus_id": gpu["bus_id"] or "", "uuid": gpu["uuid"] or ""}
            yield "gpu_answering", labels, int(isinstance(one, list))
            if isinstance(one, list):
                yield "gpu_power_watts", labels, one[0]
                yield "gpu_temperature_celsius", labels, one[3]
                yield "gpu_memory_temperature_celsius", labels, one[4] or None
                yield "gpu_fan_ratio", labels, None if one[6] is None else one[6] / 100.0
                yield "gpu_power_limit_watts", labels, gpu["limit_w"]
        for name, value in self.fans.items():
            yield "fan_rpm", {"fan": name}, value
        for month, of_month in sorted(self.energy.months.items())[-13:]:
            yield "energy_joules_total", {"part": "gpus", "month": month}, of_month["gpus_j"]
            if of_month["machine_s"]:
                yield "energy_joules_total", {"part": "machine", "month": month}, of_month["machine_j"]
        for kind, count in self.kernel.counters.items():
            yield "events_total", {"kind": kind}, count

    def write_state(self, t):
        """Writes state.json, from which `verify` knows that the guard reads."""
        month = time.strftime("%Y-%m", time.localtime(t))
        state = {
            "schema": 1,
            "t": round(t, 3),
            "up_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 1),
            "boot_id": self.boot_id,
            "gpus": [
                {"bus_id": gpu["bus_id"], "state": one if isinstance(one, str) else "" if one else "none",
                 "core_c": one[3] if isinstance(one, list) else None}
                for gpu, one in self._pairs()
            ],
            "without_gpus": self.gpus.why,
            "steps_made": self.steps.made,
            "ring": self.store.ring_error,
            "textfile": self.store.textfile_error,
            "fans": len(self.fans),
            "machine_w": self.watts[0],
            "month": dict(self.energy.months.get(month, {}), month=month),
        }  # fmt: skip
        try:
            guard_store.replace(RUN + "/state.json", json.dumps(state).encode(), 0o600)
        except OSError as error:
            self.say("state.json: %s" % error.strerror)


def tell_systemd(words):
    """A message to systemd, where it started this program with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
        try:
            out.sendto(words, "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return


def run(config, options):
    """The loop, until SIGTERM."""
    signals = []
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: signals.append(1))
    guard = Guard(config, options.config, options.after_boot_s, options.least_free_mib, options.boot_id, say=say)
    guard.begin()
    began, number, ready = time.monotonic(), 0, False
    while not signals:
        guard.tick(time.monotonic(), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
        if not ready and (guard.heard() or time.monotonic() - began > READY_S):
            ready = True
            guard.write_state(time.time())
            tell_systemd(b"READY=1")
        tell_systemd(b"WATCHDOG=1")
        number = max(number + 1, int((time.monotonic() - began) / PERIOD_S))
        time.sleep(max(0.0, began + number * PERIOD_S - time.monotonic()))
    tell_systemd(b"STOPPING=1")
    guard.offer(time.monotonic(), time.time(), guard.hours.ended(time.time(), closing=True))
    guard.store.close()


def say(words):
    """A line for the systemd journal."""
    sys.stdout.write("".join(char if char.isprintable() else " " for char in words) + "\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "check"])
    parser.add_argument("--config", default=CONFIG)
    after_boot_s, least_free_mib = guard_steps.AFTER_BOOT_S, guard_store.LEAST_FREE_MIB
    parser.add_argument(
        "--after-boot-s", type=float, default=after_boot_s, help="no power off sooner after a boot (300)"
    )
    parser.add_argument("--least-free-mib", type=int, default=least_free_mib, help="room that the ring leaves (200)")
    parser.add_argument("--boot-id", help="of this boot; systemd knows it where /proc does not show it in the sandbox")
    options = parser.parse_args()
    config = load_config(options.config)
    if options.command == "check":
        return 0
    os.umask(0o077)
    try:
        for folder in (FOLDER, RUN):
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        sys.stderr.write("guard.py: %s: %s\n" % (error.filename, error.strerror))
        return 2
    run(config, options)
    sys.stdout.flush()
    os._exit(0)  # threads that hang are not waited for


if __name__ == "__main__":
    sys.exit(main())
