"""What the `.venv/bin/invoke` imports that scripts/setup wrote until 25 November 2026, before Invoke: it works until scripts/setup writes it anew."""

from __future__ import annotations

from rigwright.core import lean_invoke as _lean_invoke  # noqa: F401
