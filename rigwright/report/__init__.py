"""The output of a run: text for a person and one JSON document for a program, from the same data."""
