import unittest

from tidy.celsius import celsius


class Celsius(unittest.TestCase):
    def test_celsius(self):
        self.assertEqual(celsius(212), 100)
        self.assertEqual(celsius(32), 0)
