"""transformers, imported without libraries for features that are not used here.

The modules of this package import transformers from here. All other code imports this package first.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# If they are installed, transformers imports the first to generate text and the second for losses of object
# detection, both with every model: 2 of the 5 s of its import.
UNUSED = ("sklearn", "scipy")


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Make packages look as if they were not installed, except those that are already imported."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # importing it fails
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


if "transformers" in sys.modules:
    import transformers
else:
    with _hidden(*UNUSED):
        import transformers

        # transformers looks for packages once and caches the answers; later versions look at the first use.
        transformers.utils.is_sklearn_available()
        transformers.utils.is_scipy_available()

__all__ = ["transformers"]
