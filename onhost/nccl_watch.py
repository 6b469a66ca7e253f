"""Runs the steps of the test in child processes. A child that hangs is killed; a hang or a crash becomes the step's result."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import nccl_host
import nccl_log
import nccl_steps

KILL_S = 20  # how long the kernel may take to end a killed process
WARM_S = 5  # after this time without output, report the step that is running
HURRY_S = 2  # quick test: time limit of a step after the first hang; 4 MiB normally need less than 0.1 s
HANGS = 2  # quick test: after this many hangs of one kind of step, the others of that kind are not run


class Watch:
    """Runs steps (made by `step`) and returns their answers by id.

    An answer is the step's own result, or {"ok": False, "outcome": "hang" or "error", "error": text}, or
    {"ok": None, "outcome": "not run", "error": reason}. `lost` has the reasons of GPUs that no longer work.
    """

    def __init__(self, options, program):
        self.options, self.program = options, program
        self.deadline = time.monotonic() + options.timeout_s
        self.folder = tempfile.mkdtemp(prefix="nccl_p2p.")
        self.devices, self.lost, self.left_behind, self.notes = {}, {}, [], []
        self.child, self.runs, self.hung = None, 0, False

    def close(self):
        """Ends the child and deletes all files."""
        if self.child:
            self.kill(self.child)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- steps

    def run(self, steps, settings=None):
        answers, todo = {}, list(steps)
        while todo:
            todo = self.possible(self.hurried(todo, answers), answers)
            if not todo:
                break
            done, failure = self.child_runs(todo, settings or {})
            answers.update(done)
            todo = [step for step in todo if step["id"] not in done]
            if failure and todo:
                todo = self.after(failure, todo, answers)
        return answers

    def possible(self, todo, answers):
        """The steps that can still run; stores the answer of the others."""
        reason = None
        if self.left_behind:
            reason = "process %d does not end after SIGKILL: a GPU is stuck in the kernel" % self.left_behind[-1]
        elif time.monotonic() >= self.deadline:
            reason = "the time limit of the test, %g s, is over" % self.options.timeout_s
        left = []
        for step in todo:
            gone = [gpu for gpu in step["gpus"] if gpu in self.lost]
            if reason or gone:
                answers[step["id"]] = not_run(reason or self.lost[gone[0]])
            else:
                left.append(step)
        for step in left:
            if step["ranks"]:
                step["ranks"][:] = [gpu for gpu in step["ranks"] if gpu not in self.lost]
        return left

    def hurried(self, todo, answers):
        """After a hang in the quick test: the steps that still run, with shorter limits; stores the answer of the others."""
        if not (self.options.quick and self.hung):
            return todo
        hangs = [kind(ident) for ident, answer in answers.items() if answer.get("outcome") == "hang"]
        left = []
        for step in todo:
            if hangs.count(kind(step["id"])) >= HANGS:
                answers[step["id"]] = not_run("%d others hang, and this is the quick test" % HANGS)
            else:
                short = step["do"] in ("copy", "send", "all_reduce")
                left.append(dict(step, timeout_s=min(step["timeout_s"], HURRY_S)) if short else step)
        return left

    def after(self, failure, todo, answers):
        """The remaining steps after the first one failed; stores the answer of the others."""
        failed, connecting = todo[0], failure.pop("init", False)
        self.hung = self.hung or failure["outcome"] == "hang"
        nccl_host.progress("%s: %s" % (failed["title"], failure["error"].replace(": " + failed["title"], "")))
        ranks = list(failed["ranks"] or [])
        if failure["outcome"] != "not run" and failed["do"] not in ("look", "nvml", "own"):
            self.look_for_lost(ranks if connecting else failed["gpus"] or ranks)
        if not connecting or set(ranks) & set(self.lost):
            answers[failed["id"]] = failure
            return todo[1:]
        left = []
        for step in todo:  # NCCL could not connect all of these: connect each pair alone
            if step["ranks"] == ranks and (step["do"] != "send" or len(ranks) <= 2):
                answers[step["id"]] = dict(failure)
            else:
                left.append(step)
                if step["ranks"] == ranks:
                    step["ranks"][:] = step["gpus"]
        return left

    def look_for_lost(self, gpus):
        """After a failure: tests these GPUs and records in `lost` those that no longer work."""
        if self.left_behind:
            return
        for gpu in gpus:
            if gpu not in self.lost:
                check = own_step(gpu, self.options)
                done, failure = self.child_runs([check], {})
                answer = failure or done[check["id"]]
                if not answer["ok"] and answer["outcome"] != "not run":
                    self.lost[gpu] = "GPU %d no longer works: %s" % (gpu, answer["error"])
                    nccl_host.progress(self.lost[gpu])

    # --- one child

    def child_runs(self, steps, settings):
        """Runs steps in one child: (answers of the finished steps, failure of the next step or None)."""
        self.runs += 1
        log = os.path.join(self.folder, "nccl.%d.log" % self.runs)
        job_path, said_path = log + ".job", log + ".said"
        job = {"steps": steps, "devices": self.devices, "log": log, "parent": os.getpid()}
        job.update(libraries=self.options.libraries, journal=self.options.journal)
        with open(job_path, "w") as file:
            json.dump(job, file)
        read_end, write_end = os.pipe()
        argv = [sys.executable, "-I", "-B", self.program, "--worker", job_path, str(write_end)]
        with open(said_path, "wb") as output:
            child = self.child = subprocess.Popen(
                argv,
                env=nccl_host.environment(os.environ, log, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(write_end,),
                start_new_session=True,
                cwd="/",
            )
        os.close(write_end)
        try:
            done, failure = self.listen(child, read_end, steps, log, said_path)
        finally:
            os.close(read_end)
            self.kill(child)
        return done, failure

    def listen(self, child, read_end, steps, log, said_path):
        done, now, rest = {}, {"title": "the start of Python", "timeout_s": 60, "init": False}, b""
        since, warned = time.monotonic(), False
        titles = {step["id"]: step["title"] for step in steps}
        while True:
            limit = min(since + self.limit(now), self.deadline)
            wait = min(limit, since + WARM_S) if not warned else limit
            if not select.select([read_end], [], [], max(0.0, wait - time.monotonic()))[0]:
                if time.monotonic() < limit:
                    warned = True
                    nccl_host.progress("%s: waiting, up to %g s" % (now["title"], self.limit(now)))
                    continue
                return done, self.too_long(now, log)
            data = os.read(read_end, 65536)
            if not data:
                return done, None if len(done) == len(steps) else self.died(child, now, said_path)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line.decode())
                if "begin" in message:
                    now = message
                elif "done" in message:
                    done[message["done"]] = message["value"]
                    self.add_transports(message["value"], now, log)
                    nccl_host.progress("%s: %s" % (titles[message["done"]], in_words(message["value"])))
                    self.journal(titles[message["done"]], (message["value"] or {}).get("outcome", "done"))
                else:
                    failure = {"ok": False, "outcome": "error", "error": message["error"]}
                    failure.update({key: message[key] for key in ("code", "init", "missing") if key in message})
                    self.add_transports(failure, now, log)
                    self.journal(now["title"], "error")
                    return done, failure
                since, warned = time.monotonic(), False

    def limit(self, now):
        return self.options.step_timeout_s or now["timeout_s"]

    def too_long(self, now, log):
        """The answer for a step that exceeded its time limit."""
        if time.monotonic() >= self.deadline:
            self.journal(now["title"], "not run")
            return not_run("the time limit of the test, %g s, ended during %s" % (self.options.timeout_s, now["title"]))
        self.journal(now["title"], "hang")
        text = "no end within %g s: %s" % (self.limit(now), now["title"])
        failure = {"ok": False, "outcome": "hang", "error": text, "init": now["init"]}
        self.add_transports(failure, now, log)
        return failure

    def died(self, child, now, said_path):
        """The answer for a child that ended without an answer."""
        try:
            code = child.wait(KILL_S)
        except subprocess.TimeoutExpired:
            code = None
        how = signal.Signals(-code).name if code is not None and code < 0 else "exit status %s" % code
        output = nccl_steps.read_from(said_path, max(0, nccl_steps.log_size(said_path) - 400)).strip()
        self.journal(now["title"], "died")
        text = "the process that did it ended by %s%s" % (how, ": " + output if output else "")
        return {"ok": False, "outcome": "error", "error": text, "init": now["init"]}

    def add_transports(self, answer, now, log):
        """Adds the transports in NCCL's log by pair of ranks: of this step, and of all steps since NCCL connected."""
        if answer is None or "log_from" not in now:
            return
        connected, began = now["log_from"]
        for key, start in (("ways", began), ("all_ways", connected)):
            transports = nccl_log.transports(nccl_steps.read_from(log, start))
            if transports:
                answer[key] = {"%d-%d" % ends: way for ends, way in transports.items()}

    def journal(self, title, outcome):
        if self.options.journal:
            nccl_steps.journal(self.options.journal, step=title, outcome=outcome)

    def kill(self, child):
        """Kills the child with its process group and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(KILL_S)
        except subprocess.TimeoutExpired:
            if child.pid not in self.left_behind:
                self.left_behind.append(child.pid)
        if self.child is child:
            self.child = None


def not_run(reason):
    return {"ok": None, "outcome": "not run", "error": reason}


def kind(ident):
    """The kind of a step: "bytes" for "bytes 0-1"."""
    return ident.partition(" ")[0]


def own_step(gpu, options):
    size = (4 if options.quick else 16) * nccl_steps.MIB
    return step("own", "GPU %d: its own memory" % gpu, "own %d" % gpu, [gpu, size], gpus=[gpu], timeout_s=90)


def step(do, title, ident, arguments, gpus=(), ranks=None, timeout_s=30):
    """A step: calls Work.do_DO with `arguments`; it uses `gpus`. `ranks`: the list in `arguments` of GPUs that NCCL connects."""
    made = {"id": ident, "do": do, "title": title, "arguments": arguments, "gpus": list(gpus), "timeout_s": timeout_s}
    return dict(made, ranks=ranks, init_s=120)


def in_words(value):
    """A result as text for a line of progress."""
    if not value or "outcome" not in value:
        return "done"
    parts = [value["outcome"]] + ([value["error"]] if value.get("error") else [])
    for key, unit in (("gb_s", "GB/s"), ("busbw_gb_s", "GB/s bus bandwidth"), ("latency_us", "us"), ("step_ms", "ms")):
        if value.get(key) is not None:
            parts.append("%.4g %s" % (value[key], unit))
    parts += sorted({way["transport"] for way in value.get("ways", {}).values()})
    return ", ".join(parts)
