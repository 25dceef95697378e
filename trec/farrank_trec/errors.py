"""Errors in the field's files and measures, in one line.

TrecError          a measure is unknown, or trec_eval does not compute it
└── InputError     a file has wrong content: the message begins with `FILE:LINE: `
"""


class TrecError(ValueError):
    """Files or measures cannot be used as they are; the message says why and what is allowed."""


class InputError(TrecError):
    """A file has wrong content; the message begins with the file and the line."""
