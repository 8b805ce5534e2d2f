import unittest

from tidy.words import count_words


class Words(unittest.TestCase):
    def test_words(self):
        self.assertEqual(count_words('one two three'), 3)
        self.assertEqual(count_words(''), 0)
