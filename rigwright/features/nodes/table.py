"""The nodes of one training as text: the interface of each, and the links between them."""

from __future__ import annotations

from rich.console import Console

from rigwright.core.numbers import count
from rigwright.features.nodes.checks import slow_links, slow_nodes, speed_text
from rigwright.features.nodes.facts import NodesMeasured
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns, write
from rigwright.report.wrapping import hanging

SHOWN = 28
"""Links that are listed, those of eight nodes; of more nodes the slowest."""


def show(console: Console, measured: NodesMeasured) -> None:
    """Writes a row for each node, and one for each link, the slowest of many."""
    slow, slow_alone = slow_nodes(measured), slow_links(measured)
    console.print()
    table = with_columns("node", "interface", "address", "rate", "NCCL over", "sends", "receives", "")
    for node in measured.nodes:
        mine = [link for link in measured.links if link.joins(node.name) and not link.error]
        table.add_row(
            as_is(node.name),
            as_is(node.interface),
            node.address,
            "-" if node.speed_mbit is None else speed_text(node.speed_mbit),
            as_is(", ".join(node.hcas) or "TCP"),
            _number(max((link.sent_gbit_s(node.name) or 0.0 for link in mine), default=None)),
            _number(max((link.received_gbit_s(node.name) or 0.0 for link in mine), default=None)),
            "[bold red]slow[/]" if node.name in slow else "",
        )
    write(console, table)
    console.print()
    table = with_columns("link", "Gb/s there", "Gb/s back", "µs", "")
    listed = sorted(measured.links, key=lambda link: link.slower_gbit_s)[:SHOWN]
    for link in [link for link in measured.links if link in listed]:
        mark = "[bold red]slow[/]" if link in slow_alone else as_is(link.error and f"{link.at}: {link.error}")
        rates = _number(link.a_to_b_gbit_s), _number(link.b_to_a_gbit_s)
        rtt = "-" if link.rtt_us is None else f"{link.rtt_us:.0f}"
        table.add_row(as_is(f"{link.a} - {link.b}"), *rates, rtt, mark)
    write(console, table)
    hidden = len(measured.links) - len(listed)
    words = "Gb/s: 10^9 bits a second over TCP, as the receiver counts them; there: from the first node to the second. "
    words += "sends, receives: the best of all links."
    words += f" {count(hidden, 'link')} more, all of them faster." if hidden else ""
    hanging(console, f"[dim]{words}[/]", 0)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
