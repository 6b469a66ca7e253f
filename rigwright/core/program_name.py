"""The name of the started program: `rigwright`, or `invoke` in a checkout."""

from __future__ import annotations

import os
import re
import sys

_COMMAND = (
    r"(?<![\w/.-])invoke (?=(?:provision|plan|verify|accept|facts|limits|init|trust|explain|TASK|--list"
    r"|(?:inventory|fleet|history|catalogue|power)\.[a-z-]+)(?![\w-]))"
)
"""Matches the commands that both programs have. It excludes the commands of the lab, which only `invoke` has."""


def program_name() -> str:
    """`rigwright` or `invoke`."""
    return "rigwright" if os.path.basename(sys.argv[0]) == "rigwright" else "invoke"


def as_typed(text: str) -> str:
    """Replaces `invoke COMMAND` in the text with the command of the started program.

    Messages, findings and the catalogue contain `invoke COMMAND`. The code that prints or saves them calls this
    function.
    """
    return text if program_name() == "invoke" else re.sub(_COMMAND, "rigwright ", text)
