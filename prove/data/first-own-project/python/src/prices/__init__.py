"""Prices as people write them."""


def parse(text):
    """The cents of a price, with commas between thousands."""
    whole, _, cents = text.replace(",", "").partition(".")
    return int(whole) * 100 + int((cents + "00")[:2])
