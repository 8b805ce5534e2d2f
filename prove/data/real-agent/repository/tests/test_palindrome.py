import unittest

from tidy.palindrome import is_palindrome


class Palindrome(unittest.TestCase):
    def test_palindrome(self):
        self.assertEqual(is_palindrome('Never odd or even'), True)
        self.assertEqual(is_palindrome('abc'), False)
