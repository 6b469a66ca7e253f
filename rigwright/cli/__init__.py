"""The Invoke tasks: what can be typed, what it is called, and one call each. `tasks.py` puts them together."""
