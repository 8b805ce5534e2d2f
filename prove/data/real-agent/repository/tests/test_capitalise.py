import unittest

from tidy.capitalise import capitalise


class Capitalise(unittest.TestCase):
    def test_capitalise(self):
        self.assertEqual(capitalise('hello World'), 'Hello World')
        self.assertEqual(capitalise(''), '')
