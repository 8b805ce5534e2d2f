import unittest

from prices import parse


class Parse(unittest.TestCase):
    def test_a_price_without_cents(self):
        self.assertEqual(parse("1,250"), 125000)

    def test_a_price_with_one_digit_of_cents(self):
        self.assertEqual(parse("3.5"), 350)


if __name__ == "__main__":
    unittest.main()
