import unittest

from tidy.mean import mean


class Mean(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([2, 4]), 3)
        self.assertEqual(mean([1, 2, 3, 6]), 3)
