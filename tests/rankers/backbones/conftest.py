"""Facts of two published checkpoints: their `config.json`, and the names and shapes of their tensors."""

import pytest

from support.published_checkpoints import PUBLISHED, Published


@pytest.fixture(params=PUBLISHED)
def published(request: pytest.FixtureRequest) -> Published:
    return PUBLISHED[request.param]
