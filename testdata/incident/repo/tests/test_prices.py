import unittest

from prices import report, total


class Prices(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total(["tea 3", "bread 4"]), 7)

    def test_report(self):
        self.assertIn("7", report(["tea 3", "bread 4"]))
