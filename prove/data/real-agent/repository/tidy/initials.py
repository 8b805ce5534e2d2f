"""The initials of a name."""


def initials(name):
    """Give the first letter of each word of a name, in capitals."""
    return "".join(word[1].upper() for word in name.split())
