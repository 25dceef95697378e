"""What ends a training with one line, and no traceback.

TrainingError    the training cannot begin or go on: the message says why and what is allowed

A file that cannot be read is `farrank_trec.errors.InputError`, whatever file it is. What is wrong with a
ranker is `farrank_rankers.errors.RankerError`.
"""


class TrainingError(Exception):
    """The training cannot begin or go on; the message says why and what is allowed."""
