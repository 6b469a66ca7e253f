"""The order of the tests and the document of their results (nccl_p2p.py describes it)."""

import time

import nccl_host
import nccl_measurement
import nccl_rounds
from nccl_steps import MIB
from nccl_watch import in_words, is_backwards, is_round, not_run, own_step, step

RESULT = ("ok", "outcome", "gb_s", "round_gb_s", "latency_us", "error")
KEYS = (  # of the document, in this order
    "schema quick outcome started seconds tiers_s versions libraries counts gpus rounds pairs all_reduce scaling "
    "shared_memory leftovers notes errors left_behind"
).split()
EMPTY = dict.fromkeys("index cuda_device bus_id uuid name compute_capability compute_mode mig processes own".split())
ALONE = " alone"  # ends the identifier of a step that measures a pair again, alone
COPY_S, SEND_S, SUM_S = 30, 40, 60  # limits of a step: a copy, a message of NCCL, an all-reduce (assumed)
QUICK_S = 5  # the limit of each of them with --quick (assumed)
P2P_OFF, ANY_DISTANCE = {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "SYS"}


class Examination(nccl_measurement.Measurement):
    """One test of the GPUs; adds its results to `document`."""

    def __init__(self, options, watch):
        self.size = (4 if options.quick else 64) * MIB
        self.data_size = (4 if options.quick else 16) * MIB
        self.sum_size, self.sum_large = (1, 16) if options.quick else (16, 256)
        self.copy_s, self.send_s, self.sum_s = (QUICK_S,) * 3 if options.quick else (COPY_S, SEND_S, SUM_S)
        self.pairs, self.used, self.lacking = [], [], []
        parts = {"quick": options.quick, "tiers_s": {}, "counts": {"nvml": None, "cuda": None}, "rounds": []}
        parts.update(pairs=[], all_reduce=None, scaling=[], shared_memory=None, leftovers=[], notes=[])
        super().__init__(options, watch, **parts)
        self.document = {key: self.document[key] for key in KEYS}

    def run(self):
        for setting in self.document["leftovers"]:
            force = "it may affect this test" if setting["in_force"] else "it does not affect this test"
            self.note("%s=%s in %s: %s" % (setting["name"], setting["value"], setting["where"], force))
        if not self.timed("grant", self.examine):
            return
        self.timed("own", self.own_memory)
        self.timed("grant", self.grant)
        self.timed("bytes", self.bytes)
        if not self.options.no_collective:
            self.timed("collective", self.collective)
            if not self.options.quick:
                self.timed("scaling", self.scaling)

    def timed(self, tier, act):
        """Calls `act` and returns its result; adds its duration to the tier's time."""
        began, spent = time.monotonic(), self.document["tiers_s"]
        try:
            return act()
        finally:
            spent[tier] = round(spent.get(tier, 0) + time.monotonic() - began, 3)

    def finished(self, seconds):
        errors = self.document["errors"]
        reported = {error["where"] for error in errors}
        lost = [("GPU %d" % gpu, text) for gpu, text in self.watch.lost.items() if gpu in self.used]
        errors[:0] = [{"where": where, "what": text} for where, text in lost if where not in reported]
        for pid in self.watch.left_behind:
            self.wrong("program", "process %d does not end after SIGKILL: the host needs a power cycle" % pid)
        return super().finished(seconds)

    def note(self, text):
        self.document["notes"].append(text)
        nccl_host.progress("note: " + text)

    def result(self, where, answer, counts=True, **more):
        """The RESULT for an answer. Adds a failure to the document's errors, if `counts`."""
        if answer["ok"] is False and counts:
            self.wrong(where, "%s: %s" % (answer["outcome"], answer["error"]))
        elif answer["outcome"] == "not run" and counts and not self.explained(answer["error"]):
            self.wrong(where, "not run: %s" % answer["error"])
        rounded = {key: rough(answer.get(key)) for key in RESULT}
        return dict(rounded, **more)

    def explained(self, reason):
        """Whether the errors contain that reason already, or will contain it for a lost GPU."""
        return reason in self.watch.lost.values() or any(reason in error["what"] for error in self.document["errors"])

    # --- libraries and GPUs

    def examine(self):
        """Finds the libraries and the GPUs; returns False if the test cannot continue."""
        document, options = self.document, self.options
        collective = not options.no_collective
        nvml = self.watch.run([step("nvml", "NVML", "nvml", [], timeout_s=60)])["nvml"]
        if nvml and nvml["error"]:
            self.note("NVML: %s" % nvml["error"])
        if nvml and "gpus" not in nvml:
            nvml = None
        if nvml:
            document["versions"]["driver"] = document["versions"]["driver"] or nvml["driver"]
            document["counts"]["nvml"] = len(nvml["gpus"])
        wanted = [collective, collective and not options.quick]
        cuda = self.watch.run([step("look", "CUDA and the libraries", "look", wanted, timeout_s=120)])["look"]
        if "devices" not in cuda:
            self.wrong("libraries" if cuda.get("missing") else "CUDA", cuda["error"])
            self.could_run = cuda["outcome"] == "hang"
            of_nvml = (nvml or {}).get("gpus", [])
            document["gpus"] = [dict(EMPTY, **dict(gpu, index=index)) for index, gpu in enumerate(of_nvml)]
            return False
        document["versions"].update(cuda["versions"])
        document["libraries"] = cuda["libraries"]
        document["counts"]["cuda"] = len(cuda["devices"])
        self.lacking = cuda["lacking"]
        self.name_gpus(cuda["devices"], (nvml or {}).get("gpus", []))
        return self.make_pairs(cuda["peers"], (nvml or {}).get("pairs", []))

    def name_gpus(self, devices, of_nvml):
        """Adds every GPU of CUDA or NVML to the document, by the index of NVML and nvidia-smi, else by CUDA's."""
        numbers = list(range(len(devices)))
        gpus = []
        for index, gpu in enumerate(of_nvml):
            place = gpu["bus_id"] and nccl_host.place(gpu["bus_id"])
            same = [n for n in numbers if place == nccl_host.place(devices[n]["bus_id"])]
            gpus.append(dict(gpu, index=index, cuda_device=same[0] if same else None))
            numbers = [n for n in numbers if n not in same]
        silent = [gpu for gpu in gpus if gpu["bus_id"] is None]
        for gpu in silent if len(silent) == len(numbers) else []:
            gpu["cuda_device"] = numbers.pop(0)  # NVML has no bus id for a lost GPU; CUDA has its old one
        gpus += [{"index": index, "cuda_device": n} for index, n in enumerate(numbers, len(of_nvml))]
        for gpu in gpus:
            number, known = gpu["cuda_device"], dict(EMPTY)
            known.update(devices[number] if number is not None else {})
            known.update({key: value for key, value in gpu.items() if value is not None or key not in known})
            self.document["gpus"].append(known)
            index = gpu["index"]
            if number is None:
                self.watch.lost[index] = "NVML lists GPU %d, CUDA does not" % index
            else:
                self.watch.devices[str(index)] = number
            if known["mig"]:
                mig = "has MIG enabled: CUDA uses one instance of it, and instances have no peer access"
                self.note("GPU %d %s" % (index, mig))
            if known["compute_mode"] not in (None, "default"):
                self.note("GPU %d has compute mode %s" % (index, known["compute_mode"]))
            if known["processes"]:
                users = "is in use by %d processes: it may be faster than measured" % known["processes"]
                self.note("GPU %d %s" % (index, users))

    def make_pairs(self, peers, of_nvml):
        """Stores the pairs to test with their grants; returns False if --pairs names a GPU that does not exist."""
        index_of = {number: int(index) for index, number in self.watch.devices.items()}
        cuda = {(index_of[a], index_of[b]): access for a, b, access in peers}
        nvml = {(a, b): more for a, b, *more in of_nvml}
        known = [gpu["index"] for gpu in self.document["gpus"]]
        pairs = self.options.pairs or [(a, b) for a in known for b in known if a != b]
        absent = sorted({gpu for pair in pairs for gpu in pair} - set(known))
        if absent:
            self.wrong("--pairs", "there is no GPU %s; there are %s" % (absent[0], ", ".join(map(str, known))))
            self.could_run = False
            return False
        self.used = sorted({gpu for pair in pairs for gpu in pair}) if self.options.pairs else known
        for a, b in pairs:
            granted, distance, link = nvml.get((a, b), (None, None, None))
            grant = {"cuda": cuda.get((a, b)), "nvml": granted, "distance": distance, "link": link}
            self.document["pairs"].append({"from": a, "to": b, "grant": grant})
        self.pairs = pairs
        rounds = [] if self.options.alone else nccl_rounds.rounds_of(pairs)
        self.document["rounds"] = [] if all(map(nccl_rounds.is_alone, rounds)) else rounds
        return True

    def own_memory(self):
        steps = [own_step(gpu, self.options) for gpu in self.used if gpu not in self.watch.lost]
        answers = self.watch.run(steps)
        for gpu in self.document["gpus"]:
            answer = answers.get("own %d" % gpu["index"])
            if answer:
                gpu["own"] = self.result("GPU %d" % gpu["index"], answer)
                if not answer["ok"] and answer["outcome"] in ("error", "hang"):
                    self.watch.lost[gpu["index"]] = "GPU %d: %s" % (gpu["index"], answer["error"])

    # --- tiers

    def grant(self):
        """Notes pairs for which NVML and CUDA disagree about peer access, except with lost GPUs."""
        for pair in self.document["pairs"]:
            a, b, nvml = pair["from"], pair["to"], pair["grant"]["nvml"]
            both_ok = nvml and nvml["read"] == nvml["write"] == "ok"
            if both_ok and pair["grant"]["cuda"] is False and not {a, b} & set(self.watch.lost):
                self.note("pair %d-%d: NVML grants peer access, CUDA refuses it" % (a, b))

    def bytes(self):
        steps, tiers = [], []
        for direct, tier, name in (
            (False, "staged", "copy through the host"),
            (True, "bytes", "copy with peer access"),
        ):
            singles = {}
            for pair in self.document["pairs"]:
                a, b = pair["from"], pair["to"]
                if direct and pair["grant"]["cuda"] is False and not {a, b} & set(self.watch.lost):
                    continue
                title, arguments = "pair %d-%d: %s" % (a, b, name), [a, b, direct, self.data_size, self.size]
                singles[a, b] = step("copy", title, key(tier, a, b), arguments, [a, b], None, self.copy_s)
            steps += self.in_rounds(tier, name, singles, None, self.copy_s)
            tiers.append(singles)
        answers = self.watch.run(steps, then=lambda answers: self.alone(tiers, answers))
        self.merge(answers)
        for pair in self.document["pairs"]:
            a, b = pair["from"], pair["to"]
            refused = {"ok": None, "outcome": "refused", "error": "CUDA grants no peer access"}
            for tier in ("bytes", "staged"):
                pair[tier] = self.result(key("pair", a, b) + " " + tier, answers.get(key(tier, a, b), refused))

    def in_rounds(self, tier, name, singles, ranks, timeout_s):
        """The steps for {pair: step}: rounds of pairs that share no GPU. A round of one pair is its own steps."""
        if self.options.alone:
            return list(singles.values())
        steps, lone, rounds = [], [], nccl_rounds.rounds_of(list(singles))
        for number, pairs in enumerate(rounds, 1):
            parts = [singles[pair] for pair in pairs]
            if nccl_rounds.is_alone(pairs):
                lone += parts
                continue
            own, gpus = ranks and list(ranks), sorted({gpu for pair in pairs for gpu in pair})
            title, ident = "round %d of %d: %s" % (number, len(rounds), name), "%s round %d" % (tier, number)
            steps.append(step("round", title, ident, [tier, self.data_size, own], gpus, own, timeout_s, parts))
        return steps + sorted(lone, key=is_backwards)

    def alone(self, tiers, answers):
        """The steps that measure pairs alone: one pair of each kind of link, and every outlier of the rounds."""
        steps = []
        for singles in tiers:
            speeds = {}
            for pair, single in singles.items():
                answer = answers[single["id"]]
                if answer["ok"] and answer.get("gb_s") is None:
                    speeds[pair] = answer.get("round_gb_s")
            for pair, reason in nccl_rounds.to_measure({pair: self.kind(*pair) for pair in speeds}, speeds).items():
                single = singles[pair]
                why = {"outlier": ", slow in its round", "no speed": ", as its round failed"}.get(reason, "")
                steps.append(dict(single, id=single["id"] + ALONE, title="%s, alone%s" % (single["title"], why)))
        return steps

    def kind(self, a, b):
        """What a pair has in common with others of its kind: the link, peer access, and the two models."""
        names = {gpu["index"]: gpu["name"] for gpu in self.document["gpus"]}
        grant = next(pair["grant"] for pair in self.document["pairs"] if (pair["from"], pair["to"]) == (a, b))
        return (grant["link"] or grant["distance"], grant["cuda"], tuple(sorted([names[a] or "", names[b] or ""])))

    def merge(self, answers):
        """Adds what was measured alone to the answers; reports a failed round whose pairs are all right."""
        for ident in [ident for ident in answers if ident.endswith(ALONE)]:
            alone, base = answers.pop(ident), ident[: -len(ALONE)]
            if alone["outcome"] != "not run":
                answers[base] = dict(answers[base], **alone)
        for ident in [ident for ident in answers if is_round(ident)]:
            failure = answers.pop(ident)
            causes = failure.get("parts")
            if failure["ok"] is False and causes and all(answers[cause]["ok"] for cause in causes):
                tier, _, number = ident.split(" ")
                what = "%s: %s; each of its pairs is right alone" % (failure["outcome"], failure["error"])
                self.wrong("round %s of the pairs (%s)" % (number, tier), what)

    def collective(self):
        self.document["shared_memory"] = shm = nccl_host.shared_memory(len(self.used))
        if shm and not shm["enough"]:
            self.note("/dev/shm has %(free_mib)d of %(size_mib)d MiB free: too small if NCCL uses shared memory" % shm)
        usual = self.messages({}, self.pairs)
        far = [pair for pair in self.pairs if self.is_far(pair, usual)]
        level_sys = self.messages(ANY_DISTANCE, far, with_sum=False) if far else {}
        without = self.messages(P2P_OFF, self.pairs)
        for pair in self.document["pairs"]:
            a, b = pair["from"], pair["to"]
            name, ident, where = "%d-%d" % (a, b), key("send", a, b), key("pair", a, b) + " collective"
            made = self.message_result(where, usual[ident], name)
            made["without_p2p"] = self.message_result(where + " without P2P", without[ident], name)
            answer = level_sys.get(ident)
            made["with_level_sys"] = answer and self.message_result(where, answer, name, counts=False)
            pair["collective"] = made
        if len(self.used) > 1 or not self.pairs:
            summed = self.sum_result("all-reduce", usual["all_reduce"])
            summed["without_p2p"] = self.sum_result("all-reduce without P2P", without["all_reduce"])
            self.document["all_reduce"] = summed

    def messages(self, settings, pairs, with_sum=True):
        """Tests send and receive between these pairs with these settings, and the all-reduce over all GPUs."""
        suffix = "".join(", %s=%s" % item for item in settings.items())
        ranks, singles = [gpu for gpu in self.used if gpu not in self.watch.lost], {}
        for a, b in pairs:
            own = list(ranks)
            title, arguments = "pair %d-%d: NCCL%s" % (a, b, suffix), [a, b, own, self.data_size, self.size]
            singles[a, b] = step("send", title, key("send", a, b), arguments, [a, b], own, self.send_s)
        steps = self.in_rounds("send", "NCCL" + suffix, singles, ranks, self.send_s)
        if with_sum:
            own = list(ranks)
            arguments = [own, self.sum_size * MIB, self.sum_large * MIB]
            limit_s = self.sum_s * max(1, len(ranks) / 8)
            steps.append(step("all_reduce", "all-reduce" + suffix, "all_reduce", arguments, [], own, limit_s))
        if not ranks:
            idents = [single["id"] for single in singles.values()] + ["all_reduce"]
            return {ident: not_run("no GPU works") for ident in idents}
        answers = self.watch.run(steps, settings, then=lambda answers: self.alone([singles], answers))
        self.merge(answers)
        shm = self.document["shared_memory"]
        for answer in answers.values():
            if answer["outcome"] == "error" and shm and not shm["enough"]:  # a likely cause
                answer["error"] += "; /dev/shm has %(free_mib)d of %(size_mib)d MiB free (docker: --shm-size=1g)" % shm
            answer.setdefault("ranks", ranks)
        return answers

    def is_far(self, pair, answers):
        """Whether NCCL does not use P2P although CUDA grants it, as between host bridges."""
        answer = answers[key("send", *pair)]
        way = ways(answer).get("%d-%d" % pair)
        granted = next(
            entry["grant"]["cuda"] for entry in self.document["pairs"] if (entry["from"], entry["to"]) == pair
        )
        return bool(granted and answer["ok"] is not None and way and way["kind"] in ("SHM", "NET"))

    def message_result(self, where, answer, name, counts=True):
        way = ways(answer).get(name) or {"transport": None, "kind": None, "words": []}
        more = {field: way[field] for field in ("transport", "kind", "words")}
        return self.result(where, answer, counts, gpus=answer.get("ranks", []), **more)

    def sum_result(self, where, answer):
        transports = {name: way["transport"] for name, way in sorted(ways(answer).items())}
        busbw = rough(answer.get("busbw_gb_s"))
        made = self.result(where, answer, gpus=answer.get("ranks", []), busbw_gb_s=busbw, transports=transports)
        del made["gb_s"], made["round_gb_s"]
        return made

    def scaling(self):
        """Rows for 1, 2, 3, 4, 8, ... and all N GPUs, when the all-reduce over N was right."""
        if self.lacking:
            self.note("no scaling table: %s" % self.lacking[0])
            return
        if not self.document["all_reduce"]["ok"]:
            self.note("no scaling table: the all-reduce was not right")
            return
        gpus, steps = self.document["all_reduce"]["gpus"], []
        for count in [number for number in (1, 2, 3, 4, 8, 16, 32) if number < len(gpus)] + [len(gpus)]:
            own = gpus[:count]
            title = "scaling: %d GPU%s" % (count, "s" if count > 1 else "")
            steps.append(step("scale", title, "scale %d" % count, [own], list(own), own, 120))
        answers, alone = self.watch.run(steps), None
        for entry in steps:
            answer, count = answers[entry["id"]], len(entry["gpus"])
            step_ms, product_ms = answer.get("step_ms"), answer.get("product_ms")
            row = {"gpus": count, "step_ms": rough(step_ms), "product_ms": rough(product_ms)}
            alone = step_ms if count == 1 else alone
            both = alone and step_ms
            row["all_reduce_ms"] = rough(step_ms - product_ms) if step_ms else None
            row["speed_up"] = round(count * alone / step_ms, 3) if both else None
            row["efficiency"] = round(alone / step_ms, 3) if both else None
            row["error"] = None if answer["ok"] else in_words(answer)
            self.document["scaling"].append(row)
            if answer["ok"] is False or (answer["ok"] is None and "MiB free" not in answer["error"]):
                self.wrong("scaling over %d GPUs" % count, in_words(answer))


def ways(answer):
    """NCCL's transports by pair of GPUs: of this step if it connected them, else of earlier steps."""
    by_rank = dict(answer.get("all_ways", {}), **answer.get("ways", {}))
    ranks, named = answer.get("ranks", []), {}
    for ends, way in by_rank.items():
        a, b = map(int, ends.split("-"))
        if max(a, b) < len(ranks):
            named["%d-%d" % (ranks[a], ranks[b])] = way
    return named


def key(what, a, b):
    return "%s %d-%d" % (what, a, b)


def rough(value):
    return round(value, 3) if isinstance(value, float) else value
