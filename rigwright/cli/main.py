"""The program `rigwright`: in a fork of a prepared process where there is one, else from the beginning."""

from __future__ import annotations

from rigwright.cli import prepared_client


def main() -> None:
    """Runs the command line."""
    prepared_client.run("rigwright")
    from rigwright.cli import program

    program.main()
