"""The elements of `nvidia-smi -q -x` that are parsed one by one: the result is that of the whole document, whatever a host answers."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest
import yaml

from rigwright.core import host_text
from rigwright.facts import smi_xml
from tests.paths import CASES

Gpus = list[tuple[str, dict[str, str]]]


def of_whole(document: str) -> Gpus | None:
    """What the parser of the whole document finds; None where it refuses it."""
    try:
        return [(gpu.attrib["id"], smi_xml.texts(gpu)) for gpu in host_text.xml(document).findall("gpu")]
    except (ValueError, KeyError):
        return None


def found(document: str) -> Gpus | None:
    try:
        return smi_xml._gpus(document)
    except (ValueError, KeyError):
        return None


def indented(document: str) -> str:
    """The document with the line breaks and tabs of nvidia-smi."""
    root = ElementTree.fromstring(document)
    ElementTree.indent(root, "\t")
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def documents() -> list[str]:
    texts = [
        yaml.safe_load(file.read_text())["answer"] for file in sorted((CASES / "facts/gpu_health.cards").glob("*.yml"))
    ]
    parts = [text.partition("<nvidia_smi_log>") for text in texts if isinstance(text, str)]
    whole = [
        begin + inside.partition("</nvidia_smi_log>")[0] + "</nvidia_smi_log>" for _, begin, inside in parts if begin
    ]
    return [indented(document) for document in whole if of_whole(document)]


def test_recorded_documents_are_read_element_by_element() -> None:
    assert len(documents()) > 5
    for document in documents():
        assert smi_xml._by_elements(document) == of_whole(document)


BEGIN, END = '<nvidia_smi_log>\n\t<a>1</a>\n\t<gpu id="00000000:41:00.0">', "\n\t</gpu>\n</nvidia_smi_log>"


@pytest.mark.parametrize(
    "inside",
    [
        "\n\t\t<a>1</a>\n\t\t<a>2</a>",  # the first one counts
        "\n\t\t<a>\n\t\t\t<b>1</b>\n\t\t</a>\n\t\t<a>\n\t\t\t<b>2</b>\n\t\t\t<c>3</c>\n\t\t</a>",
        '\n\t\t<?xml version="1.0"?><a>1</a>',  # a declaration is one only at the beginning
        "\n\t\t<!DOCTYPE a><a>1</a>",
        "\n\t\t<!-- a --><a>1</a>",
        "\n\t\t<a>1</a><!-- a -->",
        "\n\t\t<a>1<!-- </a>\n\t\t<b> --></a>",
        "\n\t\t<a>1<![CDATA[ </a>\n\t\t<b> ]]></a>",
        "\n\t\t<a>1</a><b>2</b>",
        "\n\t\t<a>1</a>2",
        "\n\t\t<a>1</a>\n\t\t</b>",
        "\n\t\t</a>\n\t\t<a>",
        "\n\t\t<a>\n\t\t</a>\n\t\t</a>",
        "\n\t\t<a>",
        "\n\t\t<a>&b;</a>",
        "\n\t\t<a>&lt;gpu&gt;</a>",
        "\n\t\t<b:a>1</b:a>",
        "\n\t\t<a>\r\n1</a>",
        "1\n\t\t<a>1</a>",
        "\n\t\t<a>1</a>\n\t</gpu>2",
        '\n\t\t<a>1</a>\n\t</gpu>\n\t<gpu id="00000000:42:00.0">\n\t\t<a>2</a>',
        '\n\t\t<a>1</a>\n\t\t<c>\n\t<gpu id="00000000:42:00.0">\n\t\t<a>2</a>\n\t</gpu>\n\t\t</c>',
        '\n\t\t<a>1</a>\n\t</gpu>\n\t<gpu id="0" id="1">\n\t\t<a>2</a>',
        "\n\t\t<a>1</a>\n\t</gpu>\n\t<b>3</b>\n\t<gpu>\n\t\t<a>2</a>",
        "",
    ],
)
def test_result_is_that_of_the_whole(inside: str) -> None:
    document = BEGIN + inside + END
    assert found(document) == of_whole(document)
    assert found(document) == of_whole(document)  # with what is kept of the first time


def test_changed_documents() -> None:
    chance = random.Random(5)
    texts = documents()
    for _ in range(3000):
        document = chance.choice(texts)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(document))
            put = chance.choice(
                ["", "<", ">", "/", "\n", "\t", "\n\t\t<", "\n\t</gpu>", "<!--", "-->", "&", "<a>", "</a>", '"', "\0"]
            )
            document = document[:at] + put + document[at + chance.choice([0, 0, 1, 1, 40]) :]
        assert found(document) == of_whole(document), document


def test_long_elements_are_not_kept() -> None:
    before = smi_xml._kept.cache_info().currsize
    text = "1" * 5000
    assert smi_xml._gpus(f"{BEGIN}\n\t\t<long>{text}</long>{END}") == [("00000000:41:00.0", {"long": text})]
    assert smi_xml._kept.cache_info().currsize <= before + 1  # <a>
