"""Gain in accuracy against run time, both relative to FirstP: the papers' Figure 1, measured here."""
