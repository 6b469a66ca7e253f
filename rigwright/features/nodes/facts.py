"""Several nodes of one training: the interface of each, the links between them, and what an interpreter's torch is."""

from __future__ import annotations

import math
import re
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_result import HostResult
from rigwright.core.schema import AbsolutePath
from rigwright.core.typed_json import typed
from rigwright.facts import Fact, Unreadable, whole
from rigwright.facts.nccl.document import READ_DOCUMENT, left_document, read_document
from rigwright.features.nodes.training_facts import NodeTraining

LEAST, MOST = 2, 32
"""How many nodes a training over several may have; all of them are connected at once."""
LONGEST = 400
GONE = "its measurement did not end"
"""The error of a link whose node `at` has no result."""


class Node(Struct, frozen=True):
    """A node and how it reaches the others. `speed_mbit`: of the interface's port, None if unknown. `why`: the reason
    for the interface. `hcas`: the ports that NCCL uses, () for TCP; `hca_gbit_s`: the rate of the slowest; `hca_why`:
    the reason for them; `link_layer`: "" for TCP. `port`: of the rendezvous. `firewalls`: their active units."""

    name: str
    address: str
    interface: str
    speed_mbit: int | None
    why: str
    hcas: tuple[str, ...] = ()
    hca_gbit_s: float | None = None
    link_layer: Literal["", "InfiniBand", "Ethernet"] = ""
    hca_why: str = ""
    port: int = 29400
    firewalls: tuple[str, ...] = ()


class Link(Struct, frozen=True):
    """What two nodes showed: 10^9 bits a second in each direction, measured by the receiver, None where nothing came.

    `at`: the name of the node whose `error` it is, "" without one. `rtt_us`: the median time of a byte there and back.
    `past_a`, `past_b`: interfaces of the node, other than the chosen one, that carried the bytes.
    """

    a: str
    b: str
    a_to_b_gbit_s: float | None
    b_to_a_gbit_s: float | None
    rtt_us: float | None
    at: str = ""
    error: str = ""
    past_a: tuple[str, ...] = ()
    past_b: tuple[str, ...] = ()

    @property
    def slower_gbit_s(self) -> float:
        """The rate of its slower direction; 0 where a direction has none."""
        return min(self.a_to_b_gbit_s or 0.0, self.b_to_a_gbit_s or 0.0)

    def joins(self, name: str) -> bool:
        """Whether it is a link of that node."""
        return name in (self.a, self.b)

    def other(self, name: str) -> str:
        """The node at its other end."""
        return self.b if name == self.a else self.a

    def sent_gbit_s(self, name: str) -> float | None:
        """The rate at which that node sent."""
        return self.a_to_b_gbit_s if name == self.a else self.b_to_a_gbit_s

    def received_gbit_s(self, name: str) -> float | None:
        """The rate at which that node received."""
        return self.b_to_a_gbit_s if name == self.a else self.a_to_b_gbit_s


class LinkFigures(Struct, frozen=True):
    """What the history keeps of a link of a node."""

    peer: str
    interface: str
    sent_gbit_s: float
    received_gbit_s: float


class DatedLink(Struct, frozen=True):
    """Figures of an earlier measurement, with its time (ISO 8601) and run."""

    at: str
    run: str
    figures: LinkFigures


class NodesMeasured(HostResult, frozen=True):
    """The results of a run over several nodes, judged for the node `own`. `before`: earlier figures of its links.
    `trainings`: in the order of the nodes; () if no training ran, for the reason `untrained`."""

    KEY = "nodes"

    own: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    before: tuple[DatedLink, ...] = ()
    trainings: tuple[NodeTraining | None, ...] = ()
    untrained: str = ""

    def node(self, name: str) -> Node:
        """The node of that name. Raises KeyError."""
        return {node.name: node for node in self.nodes}[name]

    @property
    def training(self) -> NodeTraining:
        """The training as the judged node saw it. Raises KeyError without one."""
        return {node.name: each for node, each in zip(self.nodes, self.trainings, strict=True) if each}[self.own]

    def own_links(self) -> tuple[Link, ...]:
        """The links of the judged node."""
        return tuple(link for link in self.links if link.joins(self.own))


# --- the document of host/node_link.py


class Received(Struct, frozen=True):
    """Bytes that arrived during `seconds`, on all connections together."""

    bytes: int
    seconds: float
    gbit_s: float


class LinkEnd(Struct, frozen=True):
    """The document of one end of a link. `stage`: the last stage that began. `moved`: bytes by interface, both
    directions together."""

    schema: int
    role: Literal["listen", "connect"]
    address: str
    peer: str
    port: int
    streams: int
    stage: Literal["start", "connect", "answer", "send", "receive", "done"]
    received: Received | None
    rtt_us: float | None
    moved: dict[str, int]
    error: str | None


def _linked(result: Result) -> LinkEnd:
    end = read_document(
        left_document(result, "the link was not measured", "the measurement left no document"), LinkEnd, "link's"
    )
    rates = (end.rtt_us, end.received.gbit_s if end.received else None)
    if not all(rate is None or (math.isfinite(rate) and 0 <= rate < 1e9) for rate in rates):
        raise ValueError("a rate that no network has")
    texts = (end.error or "", end.address, end.peer, *end.moved)
    if max(map(len, texts)) > LONGEST or len(end.moved) > 256:
        raise ValueError("a text that is too long")
    return end


linked = Fact("nodes.linked", READ_DOCUMENT, _linked)
"""What one end of a link found; it exists on the host only right after the measurement."""


def _figures(result: Result) -> tuple[LinkFigures, ...]:
    figures = typed(host_text.json_value(result.text), tuple[LinkFigures, ...])
    if len(figures) > MOST:
        raise ValueError(f"more than {MOST} links")
    return figures


links = Fact("nodes.links", script("echo '[]'", reads=True), _figures, kept=whole)
"""The links of a node, for the history. The controller computes them from both ends of each link; a host by itself
knows none."""


# --- the torch of an interpreter


class Torch(Struct, frozen=True):
    """Versions of an interpreter and its torch. `cuda`, `nccl` "": torch was built without."""

    python: str
    torch: str
    cuda: str
    nccl: str


_TORCH = """
user=${1:-${SUDO_USER:-}} python=$2
case $python in '~/'*) python=$(getent passwd -- "${user:-root}" | cut -d: -f6)/${python#'~/'};; esac
ask='
import sys, torch
nccl = ""
try:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else ""
except Exception:
    pass
print("%d.%d.%d" % sys.version_info[:3], torch.__version__, torch.version.cuda or "-", nccl or "-")
'
cd /
if [ -n "$user" ] && [ "$(id -u)" = 0 ]; then exec runuser -u "$user" -- "$python" -IB -c "$ask"; fi
exec "$python" -IB -c "$ask"
"""


def _torch(result: Result) -> Torch:
    if result.code != 0:
        raise Unreadable(one_line(result.error_text)[-300:] or f"the interpreter ended with {result.code}")
    words = result.lines[-1].split()
    if len(words) != 4 or not all(re.fullmatch(r"[\w.+-]{1,60}", word) for word in words):
        raise ValueError("no versions")
    python, version, cuda, nccl = ("" if word == "-" else word for word in words)
    return Torch(python, version, cuda, nccl)


def torch(python: str, user: str) -> Fact[Torch]:
    """The versions of the torch of an interpreter, as that user. Unreadable with the interpreter's last words."""
    return Fact(f"nodes.torch({python}, {user})", script(_TORCH, user, AbsolutePath(python), timeout_s=150), _torch)
