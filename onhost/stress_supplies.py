"""What the supplies of the machine say while stress.py runs: the 12 V rail, and the share of each supply at the highest
load."""

import threading
import time

try:
    import recorder
except ImportError:
    recorder = None

MOST = 32  # sensors that are kept
LONGEST = 120


class Supplies:
    """Reads supplies and rails with the recorder's own functions, in a thread, until `stop`; None where there is
    nothing to read."""

    def __init__(self, scratch, began):
        self.began, self.lock = began, threading.Lock()
        self.lowest, self.watts, self.words, self.source = None, {}, {}, None
        self.thread = recorder.Sensors(self, scratch) if recorder else None

    def start(self):
        if self.thread:
            self.thread.start()

    def stop(self):
        if self.thread:
            self.thread.ended.set()

    def add(self, line):
        """Takes a reading from the thread, as a line of the recorder's journal."""
        read = line.get("ipmi")
        if not isinstance(read, dict):
            return
        with self.lock:
            self.source = line.get("from") or self.source
            volts = read.get("12V")
            if volts is not None and (self.lowest is None or volts < self.lowest[0]):
                self.lowest = (volts, time.monotonic())
            supplies = read.get("psu") or {}
            watts = {
                name: value for name, value in supplies.items() if name.endswith(" W") and not isinstance(value, str)
            }
            if sum(watts.values()) > sum(self.watts.values()):
                self.watts = watts
            for name, value in supplies.items():
                if isinstance(value, str) and (name not in self.words or len(value) > len(self.words[name])):
                    self.words[name] = value

    def document(self):
        """The key "supplies" of the document."""
        with self.lock:
            volts, at = self.lowest or (None, None)
            return {
                "source": self.source,
                "lowest_12v": volts,
                "lowest_at_s": None if at is None else round(max(0.0, at - self.began), 1),
                "watts": {name[: -len(" W")][:LONGEST]: value for name, value in sorted(self.watts.items())[:MOST]},
                "words": {name[:LONGEST]: value[:LONGEST] for name, value in sorted(self.words.items())[:MOST]},
            }
