"""What NCCL_DEBUG=INFO says of the way that bytes take between ranks, in the words of NCCL 2.4 to 2.30 and later.

A connection is one line. The number of the channel, what stands in brackets and the words after "via" have changed:

    Ring 00 : 0[0] -> 1[1] via P2P/IPC                            up to 2.6; brackets: the CUDA device
    Channel 00 : 0[4b000] -> 1[51000] via P2P/IPC/read            2.7 to 2.13; brackets: the PCI bus id
    Channel 00 : 0[4b000] -> 1[51000] via direct shared memory    up to 2.12
    Channel 00/0 : 0[1000] -> 1[9000] via P2P/direct pointer      2.14 to 2.17
    Channel 00 : 0[0] -> 1[1] via SHM/direct/direct               from 2.18; brackets: NVML's number
    Channel 00/1 : 1[1] -> 0[0] [receive] via NET/Socket/0        a network, once for each end

Ranks, not brackets, name the ends. Threads write over each other: a line may hold the head of another one, and a
connection may stand in a line of its own without its head.
"""

import re

CONNECTION = re.compile(
    r"(?:Ring|Channel) +(?P<channel>\d+)(?:/(?P<index>\d+))? +: +"
    r"(?P<a>\d+)(?:\[(?P<a_is>[0-9a-fA-F]+)\])? +-> +(?P<b>\d+)(?:\[(?P<b_is>[0-9a-fA-F]+)\])? +"
    r"(?:\[(?:send|receive)\] +)?via(?: (?P<words>.*))?"
)
HEAD = r"(?:\[?\d{4}-\d\d-\d\d[ T][^\]\s]*\]? )?[A-Za-z0-9][\w.-]*:\d+:\d+ \[-?\d+\] "
WORDS = [  # kind, what NCCL writes, what it is called here
    ("P2P", r"P2P/(?P<way>direct pointer|IPC|CUMEM|MNNVL|common device)(?P<more>(?:/read|/CE)*)", "P2P/{way}"),
    ("P2P", r"P2P/indirect/(?P<way>\d+)\[[0-9a-fA-F]+\](?P<more>(?:/read|/CE)*)", "P2P/indirect/{way}"),
    ("SHM", r"direct shared memory(?P<more>)", "SHM"),
    ("SHM", r"SHM/(?P<way>direct|CE)(?:/(?:direct|CE))?(?P<more>)", "SHM"),
    ("NET", r"NET/(?P<way>[^/]+/\d+)(?:\(\d+\))?(?P<more>(?:/GDRDMA(?:\(PCI\))?|/Shared)*)", "NET/{way}"),
]
WARNING = re.compile(r"NCCL WARN (.*)")
NO_PEERS = re.compile(
    r"P2P is disabled between (?:NVLINK )?connected GPUs \d+ and \d+|Could not enable P2P between dev \S+ and dev [^\s]+"
)
VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")


def transports(text):
    """{(from, to): {"transport", "kind", "channels", "words"}} by rank, for every connection that the log tells of.

    kind is P2P, SHM, NET, "mixed" (channels went different ways, all are named) or "unknown": words that are not known
    here stand in transport after "unknown: ", and nothing is made of them. words are NCCL's own.
    """
    found = {}
    for line in text.splitlines():
        for piece in pieces(line):
            match = CONNECTION.search(piece)
            if match:
                pair = found.setdefault((int(match["a"]), int(match["b"])), {})
                kind, name, words = named(match["words"] or "")
                seen = pair.setdefault(name, {"kind": kind, "channels": set(), "words": []})
                seen["channels"].add((int(match["channel"]), match["index"]))
                if words not in seen["words"]:
                    seen["words"].append(words)
    return {ends: summary(ways) for ends, ways in found.items()}


def pieces(line):
    """A line that holds several, cut where a connection or the head of another line begins."""
    return re.split(r"(?=(?:Ring|Channel) +\d+(?:/\d+)? +: +\d)", line)


def named(words):
    """Kind, name and NCCL's own words of what follows "via"."""
    words = re.split(r" +comm 0x| +nRanks ", words.strip())[0]
    for kind, pattern, name in WORDS:
        match = re.match(pattern + r"(?:$|(?P<rest>" + HEAD + r".*)$)", words)
        if match:
            said = words[: match.start("rest")] if match["rest"] else words
            return kind, name.format(way=match.groupdict().get("way")), said
    return "unknown", "unknown: %s" % (words or "nothing after via"), words


def summary(ways):
    names = sorted(ways)
    kinds = {way["kind"] for way in ways.values()}
    return {
        "transport": " + ".join(names),
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "channels": len(set().union(*(way["channels"] for way in ways.values()))),
        "words": sorted(set().union(*(way["words"] for way in ways.values()))),
    }


def warnings(text):
    """What NCCL warned of, each once, in its order; what it says of peers that it may not use is among them."""
    found = []
    for line in text.splitlines():
        match = WARNING.search(line) or NO_PEERS.search(line)
        said = match and (match[1] if match.re is WARNING else match[0]).strip()
        if said and said not in found:
            found.append(said)
    return found


def version(text):
    """The version that the log names, None when it names none."""
    match = VERSION.search(text)
    return match[1] if match else None
