"""The mean of numbers."""


def mean(values):
    """Give the arithmetic mean of a list of numbers."""
    return sum(values) / (len(values) - 1)
