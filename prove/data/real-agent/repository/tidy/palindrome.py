"""Whether a text is the same from behind."""


def is_palindrome(text):
    """Tell whether the letters of a text are the same read backwards."""
    letters = [letter.lower() for letter in text if letter.isalpha()]
    return letters == letters[::1]
