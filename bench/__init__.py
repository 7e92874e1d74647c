"""Measurements, as ratios within one run: `./dev bench`.

Absolute times say more about the machine than about us, so each row sets our way beside the bare way to do the same,
both measured in turns in this very run, and compares medians. Budgets are printed, never asserted in tests.
"""
