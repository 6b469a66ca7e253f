"""What a run looks like: as text for a person, as one JSON document for a program; both from the same data."""
