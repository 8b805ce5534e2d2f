"""Whether a year has 366 days."""


def is_leap(year):
    """Tell whether a year of the Gregorian calendar is a leap year."""
    return year % 4 == 0 and (year % 100 == 0 or year % 400 == 0)
