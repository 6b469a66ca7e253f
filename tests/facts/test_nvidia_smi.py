"""The XML of nvidia-smi: which text of a path counts, and what is refused whatever a host answers."""

from __future__ import annotations

import pytest

from rigwright.core.command import Result
from rigwright.facts.gpu import nvidia_smi

NAME = "a" * 500_000
MANY = "".join(f"<b{number}/>" for number in range(20_000))


def texts(inside: str, gpus: int = 1) -> list[dict[str, str]]:
    """The texts of GPUs with these elements."""
    cards = "".join(f'<gpu id="00000000:{number % 256:02x}:00.0">{inside}</gpu>' for number in range(gpus))
    readings = nvidia_smi.readings(Result(0, f"<nvidia_smi_log>{cards}</nvidia_smi_log>".encode()))
    return [dict(reading.texts) for reading in readings]


def test_the_first_text_of_a_path_counts() -> None:
    inside = "<a>\n<b>1</b>\n</a><a><b>2</b><c>&lt;3</c></a>"
    assert texts(inside) == [{"a": "\n", "a/b": "1", "a/c": "<3"}]


@pytest.mark.parametrize(
    ("inside", "gpus", "found"),
    [
        (f"<{NAME}>{MANY}</{NAME}>", 1, "a path of more than 200 characters"),  # 10 GB of paths
        ("<a/>", 257, "more than 256 GPUs"),
        ("<a>&b;</a>", 1, "XML that cannot be read"),
        ("<!ENTITY b 'b'><a>&b;</a>", 1, "an entity in its XML"),
        ("<a>" * 100 + "</a>" * 100, 1, "XML nested deeper than 64 levels"),
        ("</gpu>\n<gpu id='0'>", 1, "XML that ends in the middle"),
        ("<a>", 1, "XML that cannot be read"),
    ],
)
def test_what_is_refused(inside: str, gpus: int, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        texts(inside, gpus)
