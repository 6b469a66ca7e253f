"""`invoke power.watch`: the current watts, clocks and degrees of a host, with their peaks, until Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from rigwright.cli import runner
from rigwright.core.errors import HostError, RigwrightError, Unreachable, UsageError
from rigwright.core.process import interruption, streams
from rigwright.core.schema import BusId
from rigwright.engine import host_variables
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.features.power import watch_table as table
from rigwright.features.power.options import PowerWatchOptions
from rigwright.features.recorder import checks as words, facts, recorder
from rigwright.features.recorder.facts import Lines, Recording
from rigwright.report import output_files

EVERY_S = 1.0
LONGEST_S = 86400
IDLE_S = 60
"""Without a poll of this command for so long the recorder ends by itself and removes its folder."""
AGAIN_S = 3.0
"""The pause between attempts to reach a host that does not answer."""


def power_watch(options: PowerWatchOptions) -> int:
    """Shows the readings of one host until Ctrl-C; returns the exit code, 2 when the machine went down."""
    watched = _Watch()

    def prepare(_run_id: str) -> runner.HostCommand:
        if options.executor:
            raise UsageError("--executor", "a watch connects from this machine", "power.watch without --executor")
        if options.json:
            raise UsageError("--json", "a watch writes text, and with --html a page", "--html", "--html power.html")
        watched.seconds = options.seconds or LONGEST_S
        watched.html = options.html
        output_files.require_writable(output_files.Files(html=options.html))
        return runner.HostCommand(
            options,
            watched.act,
            before_connecting=watched.bind,
            quiet=True,
            exit_code=lambda report: 2 if watched.went_down else report.exit_code,
        )

    return runner.run(options, prepare, output_files.Files())


class _Watch(Struct):
    """The watch of one host. `html`: the file for a page. `went_down`: whether the machine went down."""

    seconds: int = LONGEST_S
    html: str = ""
    slots: dict[BusId, str] = field(default_factory=dict)
    went_down: bool = False

    def bind(self, inventory: Any, bound: Sequence[Any]) -> None:
        """Reads the labels of the GPUs. Raises UsageError unless one host is named."""
        if len(bound) != 1:
            names = ", ".join(each.host.name for each in bound[:4])
            raise UsageError("--host", f"{len(bound)} hosts: {names}", "one host", f"--host {bound[0].host.name}")
        self.slots = host_variables.of_host(bound[0].host, inventory.rigs).desired.slots or {}

    def act(self, runs: Sequence[HostRun], text: Any) -> None:
        """Watches the host, writes the page, and the table of the peaks. Raises the error that ended the watch."""
        (run,) = runs
        if run.report.error is not None:
            return
        stop = threading.Event()

        def end(_signal: int) -> None:
            if stop.is_set():
                raise KeyboardInterrupt  # a second Ctrl-C: the recorder ends by itself
            stop.set()

        with interruption.handled(end):
            recording = self._recording(run, text, stop)
        if recording is None:
            return
        if not text.console.is_terminal:
            for line in table.summary(recording, self.slots, text.console.width):
                text.plain(line)
        if self.html:
            from rigwright.features.power import page as power_page

            simulated = run.store.known.get(system.simulated)
            page = power_page.page(
                run.host.name, recording, self.slots, simulated if isinstance(simulated, str) else ""
            )
            try:
                Path(self.html).write_text(page, encoding="utf-8")
            except OSError as error:
                found, fix = f"{self.html}: {error.strerror}", "--html power.html"
                raise UsageError("--html", found, "a file that can be written", fix) from None
            text.plain(f"{self.html}: written")

    def _recording(self, run: HostRun, text: Any, stop: threading.Event) -> Recording | None:
        """Shows the readings until the end; returns the recording, or None without a sample."""
        until = time.monotonic() + self.seconds
        screen = table.Screen(text, run.host.name, self.slots)
        lines: Lines | None = None
        with _recorder(run, self.seconds) as folder:
            following = recorder.Following(run, folder)
            while time.monotonic() < until and not stop.is_set():
                began = time.monotonic()
                try:
                    new = following.poll()
                except Unreachable as lost:
                    if not self._answers_again(run, text, stop, lost):
                        break
                    continue
                for line in new:
                    if lines is None:
                        lines = _first_lines(line, run.host.name)
                    else:
                        lines.add(line)
                if lines is not None and lines.series:
                    screen.show(lines)
                if following.state != "running":
                    self._explain_end(run, text, lines)
                    break
                if streams.failure(text.console.file):
                    break
                stop.wait(max(0.0, min(EVERY_S, until - time.monotonic()) - (time.monotonic() - began)))
        if lines is None or not lines.series:
            return None
        return lines.recording(name=folder.rpartition("/")[2])

    def _answers_again(self, run: HostRun, text: Any, stop: threading.Event, lost: RigwrightError) -> bool:
        """Waits until the host answers again; False after Ctrl-C."""
        text.plain(f"{run.host.name} does not answer ({lost.found}); trying again until Ctrl-C")
        while not stop.wait(AGAIN_S):
            with contextlib.suppress(Unreachable):
                run.transport.connect(15)
                return True
        return False

    def _explain_end(self, run: HostRun, text: Any, lines: Lines | None) -> None:
        """Says why the recorder has ended too early: the machine went down. Raises HostError for another reason."""
        run.store.known.pop(facts.unended, None)
        journal: Recording | None = run.value(facts.unended)
        if journal is not None and journal.went_down:
            self.went_down = True
            text.plain(f"{run.host.name} went down: {words.last_words(journal, self.slots)}")
            text.plain(f"the journal stays on the host: {facts.FOLDERS}/{journal.name}; verify explains it")
            return
        why = {"disk": "the disk of the host has too little room", "signal": "somebody stopped it on the host"}
        found = f"the recorder has ended: {why.get(lines.end if lines else '', 'its process ended')}"
        raise HostError(run.host.name, found, "a recorder", "df -h /var; the same command again")


def _first_lines(header: str, host: str) -> Lines:
    """The journal that begins with this line. Raises HostError if the driver of the host shows no GPUs."""
    try:
        lines = Lines(header)
    except ValueError as error:
        raise HostError(host, str(error), "a journal of the recorder", "the same command again") from None
    if not lines.gpus:
        found = f"no GPU can be watched: {lines.recording(name='watch').without_gpus or 'the driver shows none'}"
        raise HostError(host, found, "a driver that answers", f"invoke verify --host {host}")
    return lines


@contextlib.contextmanager
def _recorder(run: HostRun, seconds: int) -> Iterator[str]:
    """A recorder on the host while the context is open; afterwards its folder is gone, unless the machine went down."""
    folder = recorder.start(run, seconds + 2 * IDLE_S, idle_s=IDLE_S)
    try:
        yield folder
    finally:
        with contextlib.suppress(RigwrightError):
            recorder.stop(run, folder)
            run.store.known.pop(facts.unended, None)
            run.read((facts.unended,))
            journal = run.store.known[facts.unended]
            if not (isinstance(journal, Recording) and journal.name == folder.rpartition("/")[2]):
                recorder.discard(run, folder)
