"""A simulated host: its disk, image, boot loader, network and control groups, and ways to log in or run programs."""
