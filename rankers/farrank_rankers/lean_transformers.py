"""transformers, imported without libraries that it would import for what nobody here does.

The modules of this room take transformers from here. What else takes it imports rankers before.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Where they are installed, transformers imports the first to generate text, the second for the losses of
# object detection, and both with every model: 2 of the 5 s that a process took to import it.
UNUSED = ("sklearn", "scipy")


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Make packages look as if they were not installed, but those that are imported already."""
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

        # It looks once, and keeps the answers; later versions look when they are first asked.
        transformers.utils.is_sklearn_available()
        transformers.utils.is_scipy_available()

__all__ = ["transformers"]
