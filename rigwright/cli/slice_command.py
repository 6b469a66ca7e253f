"""A worker of `--executor`: it runs the ordinary command on a slice of the hosts, in a process of its own.

The process reads its order from stdin, as one line of JSON. After another line it begins no further host. The end of
stdin counts as Ctrl-C, so the process also ends when its worker is killed. It writes its document to stdout.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict

from rigwright.core.errors import ConsentError, HostError, RigwrightError, unexpected

if TYPE_CHECKING:
    import subprocess

    from rigwright.engine.host_run import HostRun
    from rigwright.engine.playbook import BoundPlaybook

PASSWORD_FILE = "RIGWRIGHT_BECOME_PASSWORD_FILE"
"""The environment variable in which a worker names its own file with the sudo password."""
CONSENT = "consent"
"""The place of an error that asks for consent; its finding is the question."""
LONGEST_TEXT = 1 << 20
"""Characters of the text of a slice; a longer text is cut."""
WATCH_S = 2.0
"""The seconds between two looks at whether the task is still wanted."""
_PROGRAM = (
    "import sys; sys.path = [path for path in sys.path if path];"  # without the current folder, which `-c` adds
    "from rigwright.cli import slice_command; slice_command.main()"
)
_children: dict[str, list[subprocess.Popen[str]]] = {}
"""The processes of this worker by the run that they belong to."""


class SliceOrder(TypedDict):
    """The work of a slice, without secrets.

    `command`: MODULE:CLASS of the options. `options`: an inventory and a playbook among `files` mean the worker's copy.
    `files`: by path the texts of the inventory, playbooks, templates and rigs. `machines`: rows of the history. `runs`:
    the run, and before it the runs that it continues, whose leases are taken over. `reboots`: the most hosts that may
    reboot at a time. `lost`: a host that did not come back from a reboot, or "". `most_failed`: no further host begins
    once more hosts than this have failed. `digests`: of the steps and checks of
    each host. `announced`: by host the steps whose disruption a person was shown; None: nobody was shown a plan.
    """

    command: str
    options: dict[str, Any]
    files: dict[str, str]
    machines: dict[str, list[list[Any]]]
    runs: list[str]
    reboots: int
    lost: str
    most_failed: int
    digests: dict[str, str]
    announced: dict[str, list[str]] | None


def run_slice(run: str, order: str) -> str:
    """Runs the command of an order in a process of its own; returns its document as JSON text.

    Dask calls it in a thread of the worker. It returns a text after an error too: Dask would pickle an exception.
    """
    try:
        return _document(run, order)
    except BaseException as error:
        unexpected("a slice", error)  # its traceback is in the log of the worker
        return json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]})


def _document(run: str, order: str) -> str:
    import subprocess

    from distributed import get_worker

    worker: Any = get_worker()
    key = worker.get_current_task()
    argv = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as child:
        assert child.stdin
        assert child.stdout
        _children.setdefault(run, []).append(child)
        try:
            child.stdin.write(f"{order}\n")
            child.stdin.flush()
            threading.Thread(target=_watch, args=(worker, key, run, child), daemon=True).start()
            document = child.stdout.read()
        finally:
            _children[run].remove(child)
    return document or json.dumps({"failed": f"its command ended with {child.returncode}, without a document"})


def _watch(worker: Any, key: Any, run: str, child: subprocess.Popen[str]) -> None:
    """Begins no further host once the task is no longer wanted: its controller has ended."""
    while child.poll() is None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            stop(run, "no more")
            return
        time.sleep(WATCH_S)


def stop(run: str, how: str) -> None:
    """Tells the commands of a run on this worker to begin no further host (`no more`), or to end (`interrupt`)."""
    for child in list(_children.get(run, ())):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was interrupted before
            assert child.stdin
            if how == "interrupt":
                child.stdin.close()
            else:
                child.stdin.write("no more\n")
                child.stdin.flush()


class SliceCommand:
    """The command of an order in this process, with copies of the controller's files below `place`.

    `text`: the text of the command for a person. `feed`: the stream for its document.
    """

    def __init__(self, order: SliceOrder, place: Path, feed: IO[str]) -> None:
        self.order, self.place, self.text, self._feed = order, place, io.StringIO(), feed

    def given(self) -> dict[str, Any]:
        """The options of the command. Writes the files that they name."""
        files, options = self.order["files"], self.order["options"]
        copies = {path: self.place / path.lstrip("/") for path in files}
        for path, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(files[path], encoding="utf-8")
        if password := os.environ.get(PASSWORD_FILE):
            variables = copies[options["inventory"]].parent / "group_vars" / "all.yml"
            variables.parent.mkdir(exist_ok=True)
            source = json.dumps({"file": str(Path(password).expanduser())})
            variables.write_text(f"ansible_become_password: !secret {source}\n", encoding="utf-8")
        named = {name: options.get(name) for name in ("inventory", "playbook")}
        return {**options, **{name: str(copies[path]) for name, path in named.items() if path in files}}

    def run(self) -> None:
        """Runs the command."""
        from rigwright.cli import execution
        from rigwright.history import History

        global here
        here = self
        with History.open() as history:
            history.learn(self.order["machines"])
        module, _, name = self.order["command"].partition(":")
        execution.execute(getattr(importlib.import_module(module), name), self.given())

    def consent(self, yes: bool, question: str) -> None:
        """Raises ConsentError, so that the controller asks. If it has asked, the plan is left out of the text."""
        if self.order["announced"] is not None:
            self.text.seek(0)
            self.text.truncate()
        elif not yes:
            raise ConsentError(CONSENT, question, "a yes")

    def refused(self, bound: Sequence[BoundPlaybook]) -> dict[str, RigwrightError]:
        """By host the error of each whose steps and checks differ from those at the controller."""
        from rigwright.fleet import rollout

        problem = (
            "its steps and checks are others on the worker: a condition needs a secret, or a file that was not sent"
        )
        fix = "run this host without --executor"
        return {
            playbook.host.name: HostError(playbook.host.name, problem, "the same steps", fix)
            for playbook in bound
            if rollout.digest(playbook, str(self.place)) != self.order["digests"][playbook.host.name]
        }

    def end(self, document: dict[str, Any], runs: Sequence[HostRun]) -> None:
        """Sends the document with the text, the exit codes of hosts with an error, and a host lost in a reboot."""
        codes = {run.host.name: run.report.error.exit_code for run in runs if run.report.error}
        lost = runs[0].state.lost if runs else ""
        text = self.text.getvalue()[:LONGEST_TEXT]
        document = {**document, "slice": {"text": text, "exit_codes": codes, "lost": lost}}
        folder = Path(self.order["options"]["inventory"]).parent
        written = json.dumps(document, ensure_ascii=False, allow_nan=False).replace(str(self.place), "")
        self._feed.write(written.replace(f"{folder}/group_vars/all.yml:1", f"{PASSWORD_FILE} of the worker"))
        self._feed.flush()


here: SliceCommand | None = None
"""The command of an order that this process runs; None in every process that is not of a worker."""


def main() -> None:
    """The program that a worker starts: runs the command of the order that stdin gives."""
    import tempfile

    from rigwright.core.process import startup
    from rigwright.fleet import pool

    feed, order = sys.stdout, json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="rigwright-slice.") as place:
        os.environ |= {"COLUMNS": "160", "RIGWRIGHT_HISTORY": f"{place}/history.sqlite"}
        slice_command = SliceCommand(order, Path(place), feed)
        sys.stdout = slice_command.text
        startup.prepare()
        threading.Thread(target=_obey, args=(pool.no_further_host,), daemon=True).start()
        slice_command.run()


def _obey(no_further_host: threading.Event) -> None:
    """Does what stdin says. Imports nothing: modules that two threads import at once can see each other half made."""
    for _line in sys.stdin:
        no_further_host.set()
    os.kill(os.getpid(), signal.SIGTERM)
