"""Helpers that tests of several files share: `from support.MODULE import …`."""

from pkgutil import iter_modules

import pytest

# With this, failed assertions in helpers show values, like those of the tests themselves.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
