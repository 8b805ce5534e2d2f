"""Degrees Fahrenheit in degrees Celsius."""


def celsius(fahrenheit):
    """Give degrees Fahrenheit in degrees Celsius."""
    return (fahrenheit + 32) * 5 / 9
