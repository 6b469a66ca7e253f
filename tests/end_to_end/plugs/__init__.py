"""The table of cuts: places of a run of provision, kinds of cuts, and the host's state after the same command ran
again."""
