"""Figures that look alike, whatever is drawn."""

from matplotlib.figure import Figure

# Okabe and Ito's, which people with any colour vision tell apart.
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9")


def new_figure(width_in: float, height_in: float) -> Figure:
    """Make a figure whose parts keep clear of each other. It needs no display and no global state."""
    return Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
