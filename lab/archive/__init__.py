"""The lab's package archives: their tables, packages and signatures, and the HTTP server."""
