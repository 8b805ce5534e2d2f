"""How many words a text has."""


def count_words(text):
    """Give the number of words of a text; words stand between blanks."""
    return len(text.split(","))
