"""What the guard decides: which threshold holds, for how long, and which step is due. It runs nothing, reads no clock.

A threshold holds while every reading reaches it. A reading that is missing or not plausible is ignored: it neither ends
nor lengthens anything, and no step is made on it. Without a reading for GAP_S the time begins again.
"""

LOWER_LIMIT, STOP, POWER_OFF = "lower-limit", "stop", "power-off"
STEPS = (LOWER_LIMIT, STOP, POWER_OFF)
GPU, MEMORY, FAN = "gpu_temperature_c", "memory_temperature_c", "fan_rpm_min"
KINDS = {GPU: "above", MEMORY: "above", FAN: "below"}
DEFAULT_C = {GPU: 90.0, MEMORY: 105.0}  # assumed; only for a GPU that does not report a limit of its own
PLAUSIBLE = {GPU: (5, 130), MEMORY: (5, 130), FAN: (0, 30000)}  # assumed; 0 and 255 degrees are no readings
GAP_S = {GPU: 5.0, MEMORY: 5.0, FAN: 35.0}  # assumed; a GPU is read each second, fans each ten
CALM_S = 600.0  # assumed: after so long without a threshold that holds, the steps begin again from the first
AFTER_BOOT_S = 300.0  # assumed: time for a person to log in before a broken sensor could switch the machine off again


def plausible(kind, value):
    """Whether a reading can be one of its kind."""
    low, high = PLAUSIBLE[kind]
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


class Hold:
    """A threshold that holds: since when, and its last reading."""

    def __init__(self, now, limit):
        self.since, self.last, self.value, self.limit = now, now, None, limit


class Steps:
    """The state between readings. `thresholds`: by kind {"above" or "below": number, "for_s": seconds}."""

    def __init__(self, thresholds, steps, step_s, after_boot_s=AFTER_BOOT_S):
        self.thresholds, self.steps, self.step_s, self.after_boot_s = thresholds, list(steps), step_s, after_boot_s
        self.holds, self.turned, self.made, self.made_at = {}, set(), 0, None
        self.firm_at, self.told_waiting = None, False

    def limit_of(self, kind, own=None):
        """The number of a threshold: the configured one, else the GPU's own, else the default."""
        number = self.thresholds[kind].get(KINDS[kind])
        if number is None:
            number = own if own is not None and 40 <= own <= 120 else DEFAULT_C[kind]
        return number

    def look(self, now, since_boot_s, readings):
        """What is due after new readings: a list of {"event", "why"}; an event is a step, over, held-back or calm.

        `now`: monotonic seconds. `readings`: {(kind, subject): (value, the GPU's own limit or None)}, only new ones.
        """
        for key, (value, own) in readings.items():
            if key[0] in self.thresholds and plausible(key[0], value):
                self._take(key, value, self.limit_of(key[0], own), now)
        for key in [key for key, hold in self.holds.items() if now - hold.last > GAP_S[key[0]]]:
            del self.holds[key]
        firm = {
            key: hold
            for key, hold in self.holds.items()
            if hold.last == now and now - hold.since >= self.thresholds[key[0]]["for_s"]
        }
        if not firm:
            return self._calm(now)
        begins, self.firm_at = self.firm_at is None, now
        if self.made == len(self.steps):
            return [{"event": "over", "why": self._why(firm)}] if begins else []
        return self._next(now, since_boot_s, firm)

    def _take(self, key, value, limit, now):
        over = value < limit if key[0] == FAN else value >= limit
        if not over:
            self.holds.pop(key, None)
            if key[0] == FAN:
                self.turned.add(key[1])
            return
        hold = self.holds.get(key)
        if hold is None or now - hold.last > GAP_S[key[0]]:
            hold = self.holds[key] = Hold(now, limit)
        hold.last, hold.value, hold.limit = now, value, limit

    def _calm(self, now):
        if self.firm_at is None or self.holds or now - self.firm_at < CALM_S:
            return []
        self.made, self.made_at, self.firm_at, self.told_waiting = 0, None, None, False
        return [{"event": "calm", "why": "no threshold has been reached for %d s" % CALM_S}]

    def _next(self, now, since_boot_s, firm):
        if self.made_at is not None:
            firm = {key: hold for key, hold in firm.items() if now - max(hold.since, self.made_at) >= self.step_s}
            if not firm:
                return []
        step = self.steps[self.made]
        if step == POWER_OFF:
            sure = {key: hold for key, hold in firm.items() if key[0] != FAN or key[1] in self.turned}
            waits = None
            if since_boot_s < self.after_boot_s:
                times = (since_boot_s, self.after_boot_s)
                waits = "the machine is up for %d s, and is not powered off before %d s" % times
            elif not sure:
                waits = "the fan was not seen to turn since the guard started, so its sensor may be at fault"
            if waits:
                told, self.told_waiting = self.told_waiting, True
                return [] if told else [{"event": "held-back", "why": "%s; %s" % (self._why(firm), waits)}]
            firm = sure
        self.made, self.made_at, self.told_waiting = self.made + 1, now, False
        return [{"event": step, "why": self._why(firm)}]

    @staticmethod
    def _why(firm):
        """The thresholds in words, the longest first: GPU 0000:06:00.0 at 97 C (limit 90 C) for 10 s."""
        words = []
        for (kind, subject), hold in sorted(firm.items(), key=lambda item: (item[1].since, item[0])):
            seconds = hold.last - hold.since
            if kind == FAN:
                words.append("fan %s at %d RPM (least %d) for %d s" % (subject, hold.value, hold.limit, seconds))
            else:
                part = "GPU" if kind == GPU else "memory of GPU"
                words.append("%s %s at %g C (limit %g C) for %d s" % (part, subject, hold.value, hold.limit, seconds))
        return "; ".join(words[:6]) + ("; and %d more" % (len(words) - 6) if len(words) > 6 else "")
