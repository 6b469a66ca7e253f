"""The part that the programs share which load GPUs and measure them: the begin of the document, the first look, and the
end."""

import time

import nccl_host
from nccl_watch import step

GPU = ("bus_id", "uuid", "name")


class Measurement:
    """A work of `nccl_watch.carried_out`; adds its results to `document`. `parts`: keys of the document that only this
    program has."""

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
        """Adds versions, libraries and GPUs to the document; False, with the reason in the document, where the look
        failed."""
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
