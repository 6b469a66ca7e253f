"""What the programs share that load GPUs and measure them: the options, the first look, the document, the end."""

import argparse
import json
import os
import signal
import time

import nccl_host
from nccl_watch import COULD_NOT_RUN, step

GPU = ("bus_id", "uuid", "name")


def parse(parser, words, **settings):
    """The options of a program, with --libraries and these settings, which have no option in this program."""
    parser.add_argument("--libraries", metavar="DIR", help="load the libraries from this folder or below")
    options = parser.parse_args(words)
    if options.libraries and not os.path.isdir(options.libraries):
        parser.error("--libraries %s: no such folder" % options.libraries)
    vars(options).update(settings)
    return options


def parser_of(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def parts_without(parser, text, known):
    """The parts that --without names. Ends the program if one is not known."""
    parts = [word for word in text.split(",") if word]
    if not set(parts) <= set(known):
        parser.error("--without knows %s" % ", ".join(known))
    return parts


class Measurement:
    """A work of `carried_out`; adds its results to `document`. `parts`: the keys that only this program has."""

    def __init__(self, options, watch, **parts):
        self.options, self.watch, self.could_run = options, watch, True
        self.document = {
            "schema": 1,
            "outcome": "ok",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": None,
            "versions": {"driver": nccl_host.driver_version(), "cuda_driver": None, "cuda_runtime": None, "nccl": None},
            "libraries": {},
            "gpus": [],
            **parts,
            "errors": [],
            "left_behind": [],
        }

    def look(self, collective):
        """Loads the libraries and lists the GPUs in a process: the answer of the step. `collective`: NCCL too."""
        steps = [step("look", "CUDA and the libraries", "look", [collective, True], timeout_s=120)]
        return self.watch.run(steps)["look"]

    def looked(self, look, keys=GPU):
        """Adds versions, libraries and GPUs to the document. Returns False if the look failed, with an error."""
        if "devices" not in look or look["lacking"] or not look["devices"]:
            what = look["lacking"][0] if look.get("lacking") else look["error"] or "CUDA lists no GPU"
            self.wrong("libraries" if look.get("missing") or look.get("lacking") else "CUDA", what)
            self.could_run = False
            return False
        self.document["versions"].update(look["versions"])
        self.document["libraries"] = look["libraries"]
        for number, device in enumerate(look["devices"]):
            self.watch.devices[str(number)] = device["bus_id"]
            self.document["gpus"].append({"index": number, **{key: device[key] for key in keys}})
        return True

    def wrong(self, where, what):
        self.document["errors"].append({"where": where, "what": what})

    def failed(self):
        """Whether something in the document is wrong."""
        return bool(self.document["errors"])

    def finished(self, seconds):
        """The document, when the work has ended."""
        self.document["seconds"] = round(seconds, 1)
        self.document["left_behind"] = self.watch.left_behind
        if self.failed():
            self.document["outcome"] = "failed" if self.could_run else "could not run"
        return self.document


def carried_out(work, watch):
    """Runs a work to its end, or to a signal, prints its document, and returns the exit status."""
    began = time.monotonic()
    nccl_host.on_signals(nccl_host.interrupt)
    try:
        work.run()
    except nccl_host.Interrupted as error:
        work.wrong("program", "interrupted by %s; the rest was not run" % error)
    finally:
        nccl_host.on_signals(signal.SIG_IGN)
        watch.close()
    document = work.finished(time.monotonic() - began)
    print(json.dumps(document), flush=True)
    return {"ok": 0, "failed": 1}.get(document["outcome"], COULD_NOT_RUN)
