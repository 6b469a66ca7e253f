"""Parses the transports between ranks from the log of NCCL_DEBUG=INFO, as NCCL 2.4 to 2.30 and later write it.

Each connection is one line. The channel number, the brackets and the words after "via" differ between versions:

    Ring 00 : 0[0] -> 1[1] via P2P/IPC                            up to 2.6; brackets: the CUDA device
    Channel 00 : 0[4b000] -> 1[51000] via P2P/IPC/read            2.7 to 2.13; brackets: the PCI bus id
    Channel 00 : 0[4b000] -> 1[51000] via direct shared memory    up to 2.12
    Channel 00/0 : 0[1000] -> 1[9000] via P2P/direct pointer      2.14 to 2.17
    Channel 00 : 0[0] -> 1[1] via SHM/direct/direct               from 2.18; brackets: NVML's number
    Channel 00/1 : 1[1] -> 0[0] [receive] via NET/Socket/0        a network, once for each end

The ends are the ranks, not the brackets. Output of several threads is mixed: a line may contain the prefix of another
line, and a connection may be on a line without its prefix.
"""

import re

CONNECTION = re.compile(
    r"(?:Ring|Channel) +(?P<channel>\d+)(?:/(?P<index>\d+))? +: +"
    r"(?P<a>\d+)(?:\[(?P<a_is>[0-9a-fA-F]+)\])? +-> +(?P<b>\d+)(?:\[(?P<b_is>[0-9a-fA-F]+)\])? +"
    r"(?:\[(?:send|receive)\] +)?via(?: (?P<words>.*))?"
)
HEAD = r"(?:\[?\d{4}-\d\d-\d\d[ T][^\]\s]*\]? )?[A-Za-z0-9][\w.-]*:\d+:\d+ \[-?\d+\] "
WORDS = [  # kind, pattern in NCCL's log, name in the result
    ("P2P", r"P2P/(?P<way>direct pointer|IPC|CUMEM|MNNVL|common device)(?P<more>(?:/read|/CE)*)", "P2P/{way}"),
    ("P2P", r"P2P/indirect/(?P<way>\d+)\[[0-9a-fA-F]+\](?P<more>(?:/read|/CE)*)", "P2P/indirect/{way}"),
    ("SHM", r"direct shared memory(?P<more>)", "SHM"),
    ("SHM", r"SHM/(?P<way>direct|CE)(?:/(?:direct|CE))?(?P<more>)", "SHM"),
    ("NET", r"NET/(?P<way>[^/]+/\d+)(?:\(\d+\))?(?P<more>(?:/GDRDMA(?:\(PCI\))?|/Shared)*)", "NET/{way}"),
]
WARNING = re.compile(r"NCCL WARN (.*)")
NO_PEERS = re.compile(
    r"P2P is disabled between (?:NVLINK )?connected GPUs \d+ and \d+|Could not enable P2P between dev \S+ and dev \S+"
)
VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")


def transports(text):
    """{(from, to): {"transport", "kind", "channels", "words"}} by rank, for every connection in the log.

    kind: P2P, SHM, NET, "mixed" (channels with different transports, all are named) or "unknown" (transport is then
    "unknown: " and NCCL's words). words: the original words of the log.
    """
    by_pair = {}
    for line in text.splitlines():
        for piece in pieces(line):
            match = CONNECTION.search(piece)
            if match:
                pair = by_pair.setdefault((int(match["a"]), int(match["b"])), {})
                kind, name, words = transport_of(match["words"] or "")
                seen = pair.setdefault(name, {"kind": kind, "channels": set(), "words": []})
                seen["channels"].add((int(match["channel"]), match["index"]))
                if words not in seen["words"]:
                    seen["words"].append(words)
    return {ends: summary(ways) for ends, ways in by_pair.items()}


def pieces(line):
    """Splits a line at every connection that begins in it."""
    return re.split(r"(?=(?:Ring|Channel) +\d+(?:/\d+)? +: +\d)", line)


def transport_of(words):
    """Kind, name and original words of the text after "via"."""
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
    """NCCL's warnings in order, each once, with its messages about disabled peer-to-peer access."""
    texts = []
    for line in text.splitlines():
        match = WARNING.search(line) or NO_PEERS.search(line)
        text_of_line = match and (match[1] if match.re is WARNING else match[0]).strip()
        if text_of_line and text_of_line not in texts:
            texts.append(text_of_line)
    return texts


def version(text):
    """The version of NCCL in the log, or None."""
    match = VERSION.search(text)
    return match[1] if match else None
