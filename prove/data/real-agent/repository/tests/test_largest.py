import unittest

from tidy.largest import largest


class Largest(unittest.TestCase):
    def test_largest(self):
        self.assertEqual(largest([3, 9, 4]), 9)
        self.assertEqual(largest([]), None)
