"""Runs the steps in child processes. A child that hangs is killed; a hang or a crash becomes the step's result."""

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
HURRY_S = 2  # quick test: limit of a step after the first hang, for four GPUs; 4 MiB normally need less than 0.1 s
COULD_NOT_RUN = 2  # exit status
AGAIN_S = 10  # after a hang in a round: time limit of each of its pairs alone; 64 MiB normally need less than 0.2 s
HANGS = 2  # quick test: after this many pairs that hang in one kind of step, the others of that kind are not run
UNITS = {  # of the values in lines of progress
    "gb_s": "GB/s", "round_gb_s": "GB/s in its round", "busbw_gb_s": "GB/s bus bandwidth", "latency_us": "us",
    "step_ms": "ms",
}  # fmt: skip


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

    def run(self, steps, settings=None, then=None):
        """Runs the steps, then those that `then(answers)` returns, in the same process if it still runs."""
        answers, todo = {}, list(steps)

        def more(done):
            """The further steps, once; also adds them to those that are still to do."""
            nonlocal then
            answers.update(done)
            following, then = then, None
            made = self.runnable(following(answers), answers) if following else []
            todo.extend(made)
            return made

        while True:
            todo = self.runnable(todo, answers)
            if not todo and not more({}):
                return answers
            done, failure = self.child_runs(todo, settings or {}, more)
            answers.update(done)
            todo = [step for step in todo if step["id"] not in done]
            if failure and todo:
                todo = self.after(failure, todo, answers)

    def runnable(self, todo, answers):
        return self.possible(self.within_quick_limits(todo, answers), answers)

    def possible(self, todo, answers):
        """The steps that can still run; stores the answer of the others."""
        reason, kept = None, []
        if self.left_behind:
            reason = "process %d does not end after SIGKILL: a GPU is stuck in the kernel" % self.left_behind[-1]
        elif time.monotonic() >= self.deadline:
            reason = "the time limit of the test, %g s, is over" % self.options.timeout_s
        for step in todo:
            gone = [gpu for gpu in step["gpus"] if gpu in self.lost]
            if reason or (gone and not step["parts"]):
                skip(step, reason or self.lost[gone[0]], answers)
                continue
            if gone:
                for part in step["parts"]:
                    for gpu in [gpu for gpu in part["gpus"] if gpu in self.lost][:1]:
                        answers.setdefault(part["id"], not_run(self.lost[gpu]))
                step["parts"][:] = [part for part in step["parts"] if not set(part["gpus"]) & set(self.lost)]
                step["gpus"][:] = sorted({gpu for part in step["parts"] for gpu in part["gpus"]})
            if gone and not step["parts"]:
                answers[step["id"]] = not_run(self.lost[gone[0]])
                continue
            if step["ranks"]:
                step["ranks"][:] = [gpu for gpu in step["ranks"] if gpu not in self.lost]
            kept.append(step)
        return kept

    def within_quick_limits(self, todo, answers):
        """After a hang in the quick test: the steps that still run, with shorter limits; stores the other answers."""
        if not (self.options.quick and self.hung):
            return todo
        hung = [ident for ident, answer in answers.items() if answer.get("outcome") == "hang" and not is_round(ident)]
        # the kind of each pair that hangs, in whichever direction: "bytes 0-1" and "bytes 1-0" count once
        words = (ident.partition(" ") for ident in hung)
        hangs = [kind for kind, _ in {(kind, frozenset(ends.split("-"))) for kind, _, ends in words}]
        kept = []
        for step in todo:
            if hangs.count(step["id"].partition(" ")[0]) >= HANGS:
                skip(step, "%d others hang, and this is the quick test" % HANGS, answers)
            else:
                short = step["do"] in ("copy", "send", "all_reduce", "round")
                limit_s = HURRY_S * max(1, len(step["ranks"]) / 4) if step["do"] == "all_reduce" else HURRY_S
                kept.append(dict(step, timeout_s=min(step["timeout_s"], limit_s)) if short else step)
        return kept

    def after(self, failure, todo, answers):
        """The remaining steps after the first one failed; stores the answer of the others."""
        failed, connecting = todo[0], failure.pop("init", False)
        self.hung = self.hung or failure["outcome"] == "hang"
        nccl_host.progress("%s: %s" % (failed["title"], failure["error"].replace(": " + failed["title"], "")))
        ranks = list(failed["ranks"] or [])
        unanswered = possible_causes(failed, answers)
        if failure["outcome"] != "not run" and failed["do"] not in ("look", "nvml", "own"):
            gpus = sorted({gpu for part in unanswered for gpu in part["gpus"]}) or failed["gpus"]
            self.look_for_lost(ranks if connecting else gpus or ranks)
        if not connecting or set(ranks) & set(self.lost):
            answers[failed["id"]] = dict(failure, ranks=ranks, parts=[part["id"] for part in unanswered])
            most_s = AGAIN_S if failure["outcome"] == "hang" else failed["timeout_s"]
            return [dict(part, timeout_s=min(part["timeout_s"], most_s)) for part in unanswered] + todo[1:]
        again = []
        for step in todo:  # NCCL could not connect all of these: connect each pair alone
            if step["ranks"] != ranks:
                again.append(step)
            elif step["do"] == "round":
                answers[step["id"]] = dict(failure)
                again += [part for part in step["parts"] if part["id"] not in answers]
                for part in step["parts"]:
                    part["ranks"][:] = part["gpus"]
            elif step["do"] != "send" or len(ranks) <= 2:
                answers[step["id"]] = dict(failure, ranks=ranks)
            else:
                again.append(step)
                step["ranks"][:] = step["gpus"]
        return again

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

    def child_runs(self, steps, settings, more=None):
        """Runs steps in one child, then those of `more`; returns the answers and the failure, if any."""
        self.runs += 1
        log = os.path.join(self.folder, "nccl.%d.log" % self.runs)
        job_path, said_path = log + ".job", log + ".said"
        job = {"steps": list(steps), "devices": self.devices, "log": log, "parent": os.getpid()}
        job.update(libraries=self.options.libraries, journal=self.options.journal)
        with open(job_path, "w") as file:
            json.dump(job, file)
        read_end, write_end = os.pipe()
        argv = [sys.executable, "-I", "-B", self.program, "--worker", job_path, str(write_end)]
        with open(said_path, "wb") as output:
            child = self.child = subprocess.Popen(
                argv, env=nccl_host.environment(os.environ, log, settings), stdin=subprocess.PIPE, stdout=output,
                stderr=output, pass_fds=(write_end,), start_new_session=True, cwd="/",
            )  # fmt: skip
        os.close(write_end)
        try:
            return self.listen(child, read_end, job["steps"], log, said_path, more)
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()
            os.close(read_end)
            self.kill(child)

    def listen(self, child, read_end, steps, log, said_path, more):
        done, now, rest = {}, {"title": "the start of Python", "timeout_s": 60, "init": False}, b""
        since, warned = time.monotonic(), False
        known = {step["id"]: step for step in steps}
        while True:
            limit = min(since + self.limit(now), self.deadline)
            wait = min(limit, since + WARM_S) if not warned else limit
            if not select.select([read_end], [], [], max(0.0, wait - time.monotonic()))[0]:
                if time.monotonic() < limit:
                    warned = True
                    nccl_host.progress("%s: waiting, up to %g s" % (now["title"], self.limit(now)))
                    continue
                failure = self.too_long(now, log)
                if now.get("begin") in known:
                    self.tell_parts(known[now["begin"]], done, now, log)
                return done, failure
            data = os.read(read_end, 65536)
            if not data:
                is_done = all(ident in done for ident in known)
                return done, None if is_done else self.end_without_answer(child, now, said_path)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line.decode())
                if "begin" in message:
                    now = message
                elif "part" in message:
                    done[message["part"]] = message["value"]
                elif "done" in message:
                    step, value = known[message["done"]], message["value"]
                    done[step["id"]] = value
                    self.tell(step, value, done, now, log)
                    if all(ident in done for ident in known):
                        following = more(done) if more else []  # without more steps the child ends
                        known.update({step["id"]: step for step in following})
                        with contextlib.suppress(OSError):  # it has ended, and that will be noticed
                            child.stdin.write((json.dumps(following) + "\n").encode())
                            child.stdin.flush()
                else:
                    failure = {"ok": False, "outcome": "error", "error": message["error"]}
                    failure.update({key: message[key] for key in ("code", "init", "missing") if key in message})
                    self.add_transports(failure, now, log)
                    self.tell_parts(known[message["failed"]], done, now, log)
                    self.journal(now["title"], "error")
                    return done, failure
                since, warned = time.monotonic(), False

    def tell(self, step, value, done, now, log):
        """Adds the transports to a step's answer, and reports it: on stderr and in the journal."""
        if step["parts"]:
            self.tell_parts(step, done, now, log)
        else:
            self.add_transports(value, now, log)
            if value is not None:
                value["ranks"] = list(step["ranks"] or [])
            nccl_host.progress("%s: %s" % (step["title"], in_words(value)))
        self.journal(step["title"], (value or {}).get("outcome", "done"))

    def tell_parts(self, step, done, now, log):
        """The same for the parts of a round."""
        ways = {}
        if step["parts"]:
            self.add_transports(ways, now, log)
        for part in step["parts"]:
            answer = done.get(part["id"])
            if answer is not None:
                answer.update(ways, ranks=list(step["ranks"] or []))
                nccl_host.progress("%s: %s" % (part["title"], in_words(answer)))
                self.journal(part["title"], answer["outcome"])

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

    def end_without_answer(self, child, now, said_path):
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


def skip(step, reason, answers):
    """Stores that a step, and each part without an answer, is not run."""
    answers.setdefault(step["id"], not_run(reason))
    for part in step["parts"]:
        answers.setdefault(part["id"], not_run(reason))


def possible_causes(step, answers):
    """The parts of a failed round that may be its cause: without an answer, else without a speed."""
    silent = [part for part in step["parts"] if part["id"] not in answers]
    right = [part for part in step["parts"] if part["id"] in answers and answers[part["id"]]["ok"]]
    causes = silent or [part for part in right if answers[part["id"]].get("round_gb_s") is None]
    return sorted(causes, key=is_backwards)


def is_backwards(step):
    return step["gpus"][0] > step["gpus"][1]


def is_round(ident):
    return ident.split(" ")[1:2] == ["round"]


def own_step(gpu, options):
    size = (4 if options.quick else 16) * nccl_steps.MIB
    return step("own", "GPU %d: its own memory" % gpu, "own %d" % gpu, [gpu, size], gpus=[gpu], timeout_s=90)


def step(do, title, ident, arguments, gpus=(), ranks=None, timeout_s=30, parts=()):
    """A step: calls Work.do_DO with `arguments`; it uses `gpus`.

    `ranks`: the list in `arguments` of GPUs that NCCL connects. `parts`: of a round, the steps that would do the same
    for each of its pairs alone; each has its own answer.
    """
    made = {"id": ident, "do": do, "title": title, "arguments": arguments, "gpus": list(gpus), "timeout_s": timeout_s}
    return dict(made, ranks=ranks, init_s=120, parts=list(parts))


def in_words(value):
    """A result as text for a line of progress."""
    if not value or "outcome" not in value:
        return "done"
    parts = [value["outcome"]] + ([value["error"]] if value.get("error") else [])
    for key, unit in UNITS.items():
        if value.get(key) is not None:
            parts.append("%.4g %s" % (value[key], unit))
    parts += sorted({way["transport"] for way in value.get("ways", {}).values()})
    parts += value.get("words", [])
    return ", ".join(parts)
