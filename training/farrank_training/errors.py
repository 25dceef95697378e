"""Errors that end a training with one line and without a traceback.

TrainingError    the training cannot begin or go on: the message says why and what is allowed

An unreadable file raises `farrank_trec.errors.InputError`. An unusable ranker raises
`farrank_rankers.errors.RankerError`.
"""


class TrainingError(Exception):
    """The training cannot begin or go on; the message says why and what is allowed."""
