"""The table of `scripts/bench --p2p`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.p2p import Variant, lines


def test_the_table_has_medians_and_the_ratio_to_the_first() -> None:
    def variant(name: str, *seconds: float) -> Variant:
        tiers = {"own": 1.0, "bytes": 2.0, "collective": 3.0}
        return Variant(name, Path(), (), [({"seconds": one, "tiers_s": tiers}, 4.0, 0.5) for one in seconds])

    made = lines(16, [variant("rounds", 10.0, 20.0, 12.0), variant("every pair alone", 96.0)])
    assert made[0].split() == ["16", "GPUs,", "rounds", "12.0", "1.00", "4.0", "1.0", "2.0", "3.0", "0.0", "0.5", "3"]
    assert made[1].split()[5:7] == ["96.0", "8.00"]


def test_a_variant_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "nccl_p2p.py").write_text("import sys; sys.exit('no GPU')")

    class Driver:
        @staticmethod
        def env() -> dict[str, str]:
            return {}

    with pytest.raises(SystemExit, match="no GPU"):
        Variant("rounds", tmp_path).run(Driver(), ())  # type: ignore[arg-type]
