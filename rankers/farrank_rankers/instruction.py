"""The place of an instruction in a ranker's format, and the same ranker with another instruction.

A language model that answers has it in its template, and so have some classifiers. The query prefix of other
rankers that were trained with instructions is "Instruct: INSTRUCTION", a line's end and "Query:".

Source: Wang et al., "Improving Text Embeddings with Large Language Models", ACL 2024, whose form E5, Qwen3
Embedding and others share.
"""

import re
from dataclasses import replace

from farrank_rankers.family import BiEncoderOptions, CrossEncoderOptions, Options

# Tokens of an instruction for which encoder inputs have room, if they are at most an eighth of the backbone's
# positions.
INSTRUCTION_TOKENS = 256

_PREFIX = re.compile(r"(Instruct: )(.*)(\nQuery:\s*)", re.DOTALL)


def instruction_of(options: Options) -> str | None:
    """Find the instruction in a ranker's format, empty if none is set; None if the format has no place."""
    if isinstance(options, CrossEncoderOptions) and options.template:
        return options.instruction if options.takes_instruction else None
    if isinstance(options, BiEncoderOptions | CrossEncoderOptions):
        found = _PREFIX.fullmatch(options.query_prefix)
        return found and found[2]
    return None


def with_instruction(options: Options, instruction: str) -> Options:
    """Replace the instruction in a format that has a place for one."""
    if isinstance(options, CrossEncoderOptions) and options.template:
        return replace(options, instruction=instruction)
    assert isinstance(options, BiEncoderOptions | CrossEncoderOptions), "its format has a place"
    found = _PREFIX.fullmatch(options.query_prefix)
    assert found is not None, "its format has a place"
    return replace(options, query_prefix=f"{found[1]}{instruction}{found[3]}")


def why_no_instruction(family: str, options: Options) -> str | None:
    """Explain why a ranker takes no instruction; None if it takes one."""
    if instruction_of(options) is not None:
        return None
    if isinstance(options, CrossEncoderOptions) and options.template:
        return "the template has no {instruction} for it"
    if isinstance(options, BiEncoderOptions | CrossEncoderOptions):
        return f"its query_prefix is {options.query_prefix!r}, not 'Instruct: …', a line's end and 'Query:'"
    return f"family {family} has no instruction in its format"
