"""What node_exporter on the host serves of rigwright's metrics."""

from __future__ import annotations

import re

from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unavailable

UNIT, PACKAGE = "prometheus-node-exporter.service", "prometheus-node-exporter"
"""Debian's and Ubuntu's node_exporter."""

_READ = """
for round in 1 2 3 4 5 6 7 8 9 10 11 12; do  # a guard that was started now writes its first file within 20 s
  found=$(curl -fsS --noproxy '*' --max-time 10 http://127.0.0.1:9100/metrics 2>&1) ||
    { printf '%s\\n' "$found" | tail -n 1 >&2; exit 1; }
  number=$(printf '%s\\n' "$found" | grep -c '^rigwright_guard_')
  [ "$number" = 0 ] && [ "$(systemctl is-active gpu-guard.service)" = active ] && [ $round != 12 ] || break
  sleep 2
done
echo "guard $number"
printf '%s\\n' "$found" | sed -n 's/^rigwright_guard_reading_time_seconds \\([0-9.e+]*\\)$/read \\1/p' | head -n 1
echo "now $(date +%s)"
"""


def _age(result: Result) -> float | None:
    if result.code != 0:
        raise Unavailable(f"node_exporter: {one_line(result.error_text)[-200:] or 'no answer on port 9100'}")
    values = dict(line.split(" ", 1) for line in result.lines)
    if not all(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?(e\+[0-9]{1,2})?", value) for value in values.values()):
        raise ValueError("a value that is no number")
    if int(values["guard"]) == 0 or "read" not in values:
        return None
    return max(0.0, float(values["now"]) - float(values["read"]))


reading_age_s: Fact[float | None] = Fact("metrics.reading_age_s", script(_READ, timeout_s=60), _age)
"""How old the guard's reading is that node_exporter serves on port 9100, seconds; None while it serves none."""
