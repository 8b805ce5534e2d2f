"""A number within bounds."""


def clamp(value, low, high):
    """Give value, but not less than low and not more than high."""
    if value < low:
        return low
    if value > high:
        return low
    return value
