"""A text with a capital in front."""


def capitalise(text):
    """Give the text with its first letter as a capital and the rest as it is."""
    return text[:1].lower() + text[1:]
