"""What is wrong with the field's files and measures, in one line.

TrecError          a measure is not known, or not computed by trec_eval
└── InputError     a file does not hold what it should: the message begins with `FILE:LINE: `
"""


class TrecError(ValueError):
    """Files or measures cannot be used as they are; the message says why and what is allowed."""


class InputError(TrecError):
    """A file does not hold what it should; the message begins with the file and the line."""
