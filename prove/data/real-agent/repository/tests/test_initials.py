import unittest

from tidy.initials import initials


class Initials(unittest.TestCase):
    def test_initials(self):
        self.assertEqual(initials('Ada Lovelace'), 'AL')
        self.assertEqual(initials('grace brewster hopper'), 'GBH')
