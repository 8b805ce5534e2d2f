import unittest

from tidy.countdown import countdown


class Countdown(unittest.TestCase):
    def test_countdown(self):
        self.assertEqual(countdown(3), [3, 2, 1])
        self.assertEqual(countdown(0), [])
