"""The options of `invoke accept`."""

from __future__ import annotations

from rigwright.cli.options import PeerTestOptions


class AcceptOptions(PeerTestOptions, command="accept"):
    """Check second-hand hardware: serials, memory errors ever, links, speeds. Changes nothing.

    Peer-to-peer is tested in full when the GPUs are idle and the host has the
    libraries, or --wheels says where they come from. With --html it writes a sheet
    to print and sign. What the newest stress measured of each GPU is shown beside the
    figure of its model; accept itself loads nothing.

        invoke accept --host servbadge --wheels fetch --html servbadge.html

    Exit 0 when there is no flaw, 2 when there is one.
    """
