"""Gain in accuracy against run time, both over the respective FirstP: the papers' Figure 1, measured here."""
