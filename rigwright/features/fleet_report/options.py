"""The options of `invoke fleet.report`."""

from __future__ import annotations

from rigwright.cli.option_values import count
from rigwright.cli.options import FleetOptions, option


class FleetReportOptions(FleetOptions, command="fleet.report"):
    """Write the report page of a fleet, JSON, or metrics. Changes nothing.

    Problems come first: differences as fleet.check finds them, checks that fail as
    in verify (without the peer-to-peer test), changes since the last report, and
    what reaches its end of life soon. Machines and GPUs are ranked by the speed that
    their newest stress measured, the slowest first with what to do. Then every machine
    with its GPUs: their temperature and power, now and in the last days.

        invoke fleet.report
        invoke fleet.report --host gpu --html /srv/www/gpu.html --reload 300
        invoke fleet.report --prometheus rigwright.prom --json fleet.json

    Exit 2 when something is not as expected, 3 when a host does not answer; the
    other hosts are still complete. How to write a page every ten minutes, and
    all metrics: docs/guide/fleet.md.
    """

    html: str = option("write the page to FILE (default: fleet.html, unless --json or --prometheus is given)")
    prometheus: str = option("write metrics to FILE.prom, for node_exporter's textfile collector")
    reload: int = option(
        "seconds after which a browser loads the page again, such as 300 (default: never)",
        0,
        type=count("seconds", 10, 86400, example=300),
    )
