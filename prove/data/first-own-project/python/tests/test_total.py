import unittest

import prices


class Total(unittest.TestCase):
    def test_the_total_of_several_prices(self):
        self.assertEqual(prices.total(["1,250", "3.5", "0.99"]), 125449)

    def test_the_total_of_nothing(self):
        self.assertEqual(prices.total([]), 0)


if __name__ == "__main__":
    unittest.main()
