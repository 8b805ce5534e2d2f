import unittest

from tidy.leap import is_leap


class Leap(unittest.TestCase):
    def test_leap(self):
        self.assertEqual(is_leap(2024), True)
        self.assertEqual(is_leap(1900), False)
        self.assertEqual(is_leap(2000), True)
        self.assertEqual(is_leap(2023), False)
