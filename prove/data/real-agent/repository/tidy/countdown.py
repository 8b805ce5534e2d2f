"""Numbers down to one."""


def countdown(start):
    """Give the numbers from start down to 1."""
    return list(range(start, 0))
