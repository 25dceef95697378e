"""How many tokens a batch may hold, learned from batches that did not fit."""

# Batches in a row that fitted, before a larger one is tried again.
PATIENCE = 200

GROWTH = 1.5

# What is below this share of the configured budget is no lasting want of memory but a moment's.
FLOOR = 1 / 16


class TokenBudget:
    """Starts at what was configured, shrinks when a batch runs out of memory, and grows back in time."""

    def __init__(self, configured: int) -> None:
        self._configured = configured
        self._fitted = 0
        self.tokens = configured

    def failed(self, padded_tokens: int) -> None:
        """Halve what failed, for the batches to come."""
        self._fitted = 0
        self.tokens = max(1, round(self._configured * FLOOR), min(self.tokens, padded_tokens // 2))

    def fitted(self) -> None:
        """Count a batch that ran; after many of them, dare more."""
        if self.tokens == self._configured:
            return
        self._fitted += 1
        if self._fitted >= PATIENCE:
            self._fitted = 0
            self.tokens = min(self._configured, round(self.tokens * GROWTH) + 1)
