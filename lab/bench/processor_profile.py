"""Where a command spends its processor time, for `scripts/bench --profile`: samples of all threads, in the categories
of CATEGORIES.

    python -m lab.bench.processor_profile FILE PROGRAM WORDS...     runs a program of Python, and appends its seconds by
    category to FILE

Each millisecond of processor time, the time that each thread has used since the last sample is counted for what its
stack shows. What the interpreter needs before the program begins and after it has ended is not sampled; it is the rest
of what the kernel counts.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

INTERVAL_S = 0.001
PACKAGES = (
    "rigwright", "invoke", "fabric", "paramiko", "cryptography", "nacl", "bcrypt", "rich", "jinja2", "yaml",
    "markupsafe", "lab",
)  # fmt: skip
"""The packages whose imports are counted by themselves; all others are the standard library."""
CATEGORIES = (
    ("regular expressions: compile", ("re/_parser.py", "re/_compiler.py", "sre_parse.py", "sre_compile.py")),
    ("dataclasses: make methods", ("/dataclasses.py",)),
    ("catalogue and templates: kept on disk", ("core/files/disk_cache.py",)),
    ("signatures and type hints", ("/inspect.py", "/typing.py")),
)
"""Work that counts by itself, also while a module is imported."""
WORK = (
    ("YAML", ("/yaml/", "core/yaml_source.py", "core/schema.py")),
    ("Jinja2: templates", ("/jinja2/", "core/templates/rendering.py", "core/templates/host_files.py")),
    ("Invoke: command line", ("/invoke/",)),
    ("SSH: login and channel", ("/paramiko/", "/cryptography/", "/fabric/", "rigwright/ssh/")),
    ("rich: text", ("/rich/", "rigwright/report/")),
    ("history and JSON", ("rigwright/history/", "/json/", "/sqlite3/", "core/files/sqlite.py")),
    (
        "facts, plan and checks",
        tuple(f"rigwright/{name}/" for name in ("facts", "engine", "operations", "checks", "fleet", "driver")),
    ),
    ("catalogue: look-ups", ("rigwright/catalogue/",)),
    ("commands, inventory, core", ("rigwright/cli/", "rigwright/inventory/", "rigwright/core/")),
)
"""Work outside of imports, by the innermost frame that is of a category."""


def category(frame: FrameType | None) -> str:
    """What a stack is busy with."""
    stack = list(_stack(frame))
    for name, files in CATEGORIES:
        if any(file.endswith(files) for file, _ in stack):
            return name
    importing = next((name for _, name in stack if name), "")
    if importing:
        package = importing.partition(".")[0]
        return f"import: {package if package in PACKAGES else 'standard library'}"
    for file, _ in stack:
        for name, parts in WORK:
            if any(part in file for part in parts):
                return name
    return "other"


def _stack(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """The file of each frame, and the module that it imports, if it does; the innermost frame first."""
    while frame:
        code = frame.f_code
        finds = code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib")
        yield code.co_filename, str(frame.f_locals.get("name", "")) if finds else ""
        frame = frame.f_back


class Samples(threading.Thread):
    """Takes samples until the process ends: seconds of processor time by category."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[str] = Counter()
        self._last: dict[int, float] = {}
        self._lock = threading.Lock()
        self.take()
        self.seconds.clear()  # what this program itself has used

    def run(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            self.take()

    def take(self) -> None:
        """Counts what each thread has used since the last sample."""
        with self._lock:
            frames = sys._current_frames()
            for thread in threading.enumerate():
                if thread.ident is None or thread is self:
                    continue
                try:
                    used: float = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                except OSError:  # it has ended
                    continue
                spent = used - self._last.get(thread.ident, 0.0)
                self._last[thread.ident] = used
                if spent > 0:
                    self.seconds[category(frames.get(thread.ident))] += spent  # type: ignore[assignment]


def record(file: Path, argv: Sequence[str]) -> None:
    """Runs a program, and appends a line with its seconds by category to the file."""
    sys.setswitchinterval(INTERVAL_S / 4)
    samples = Samples()

    def end() -> None:
        samples.take()
        with file.open("a") as out:
            out.write(json.dumps(samples.seconds) + "\n")

    atexit.register(end)
    samples.start()
    sys.argv = [os.path.abspath(argv[0]), *argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def mean(file: Path) -> dict[str, float]:
    """The mean seconds by category of the runs in a file, most first."""
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run)
    return {name: seconds / len(runs) for name, seconds in total.most_common()}


def table(seconds: Mapping[str, float], whole_s: float) -> str:
    """The table of a profile; `whole_s`: processor time of the command without sampling, the median of its runs."""
    lines = [f"{1000 * spent:8.1f} ms  {name}" for name, spent in seconds.items() if spent >= 0.0005]
    return "\n".join(
        [*lines, f"{1000 * sum(seconds.values()):8.1f} ms  sampled; {1000 * whole_s:.1f} ms without sampling"]
    )


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2:])
