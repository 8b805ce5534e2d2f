"""The largest of numbers."""


def largest(values):
    """Give the largest of a list of numbers, or None when it is empty."""
    return min(values) if values else None
