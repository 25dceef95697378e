"""The common style of all charts."""

from matplotlib.figure import Figure

# Okabe and Ito's palette, distinguishable with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9")


def new_figure(width_in: float, height_in: float) -> Figure:
    """Make a figure whose parts do not overlap. It needs no display and no global state."""
    return Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
