"""The tokenized prompt around query and document of a language model."""

import re
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from farrank_rankers.errors import SpecError
from farrank_rankers.family import DOCUMENT, INSTRUCTION, QUERY, CrossEncoderOptions
from farrank_rankers.tokenizer import Frame, TextTokenizer
from farrank_rankers.tokens import IntArray, Role, TokenizedText

_SPACES = re.compile(" *$")


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A template, tokenized once: the tokens around query and document, and the way to read the two.

    A template's parts are tokenized separately. Inside a part, spaces right before a placeholder are
    tokenized with the query (`query_spaces`) or the document (`document_spaces`), not with the text before
    them, because language models' tokenizers begin a word with its space. The text after the query in its
    part, `tail`, is tokenized together with the query, because many tokenizers join a question mark and the
    line's end; `tail_ids` are its separate tokens.
    """

    tokenizer: TextTokenizer
    frame: Frame
    query_spaces: str
    document_spaces: str
    tail: str
    tail_ids: IntArray

    @classmethod
    def of(cls, options: CrossEncoderOptions, tokenizer: TextTokenizer) -> "Prompt":
        """Tokenize a template."""
        template = options.template
        of_query = next(index for index, part in enumerate(template) if QUERY in part)
        of_document = next(index for index, part in enumerate(template) if DOCUMENT in part)
        before, tail = template[of_query].split(QUERY)
        # Last, because the instruction may contain a placeholder's name.
        *head, before = (_instructed(part, options.instruction) for part in (*template[:of_query], before))
        before, query_spaces = _at_spaces(before)
        head.append(before)
        between: list[str] = []
        if of_document == of_query:
            tail, document_spaces = _at_spaces(tail.removesuffix(DOCUMENT))
        else:
            last, document_spaces = _at_spaces(template[of_document].removesuffix(DOCUMENT))
            between = [*template[of_query + 1 : of_document], last]
        end = list(template[of_document + 1 :])
        return cls(
            tokenizer,
            Frame(tuple(_special(tokenizer, texts) for texts in (head, between, end)), text_types=(0, 0)),
            query_spaces,
            document_spaces,
            tail,
            tokenizer.ids(tail),
        )

    @property
    def special_tokens(self) -> int:
        """Count the maximum positions of the template."""
        return self.frame.special_tokens + len(self.tail_ids)

    def query_steps(self, text: str, limit: int) -> Generator[int, None, TokenizedText]:
        """Tokenize a query with the text after it, and keep `limit` tokens of it; joined tokens count.

        Steps and errors are those of `TextTokenizer.steps`.
        """
        alone = yield from self.tokenizer.steps(text, limit, count_tokens=True, spaces=self.query_spaces)
        if self.tail and len(alone) and not alone.tokens_cut:
            most = len(alone) + len(self.tail_ids)
            joint = yield from self.tokenizer.steps(
                text + self.tail, most, count_tokens=True, spaces=self.query_spaces
            )
            own = int((joint.starts < len(text)).sum())
            if not joint.tokens_cut and own <= limit:
                return TokenizedText(
                    ids=joint.ids[:own],
                    starts=joint.starts[:own],
                    ends=np.minimum(joint.ends[:own], len(text)),
                    characters_cut=0,
                    total_tokens=own,
                    behind=joint.ids[own:],
                )
        return replace(alone, behind=self.tail_ids)


def check_answer(tokenizer: TextTokenizer, name: str, answer: str) -> int:
    """Find the id of an answer's token, by its name in the vocabulary or as a text.

    Raises: SpecError if the answer is not exactly one token.
    """
    named = tokenizer.tokenizer.token_to_id(answer)
    if named is not None:
        return int(named)
    ids = tokenizer.ids(answer)
    if len(ids) != 1:
        raise SpecError(f"{name} is {answer!r}, which is {len(ids)} tokens; it must be one")
    return int(ids[0])


def _instructed(part: str, instruction: str) -> str:
    """Insert the instruction; without one, leave out its line."""
    if not instruction:
        return "".join(line for line in re.split(r"(?<=\n)", part) if INSTRUCTION not in line)
    return part.replace(INSTRUCTION, instruction)


def _at_spaces(text: str) -> tuple[str, str]:
    """Split a text before its trailing spaces."""
    spaces = _SPACES.search(text)
    end = spaces.start() if spaces else len(text)
    return text[:end], text[end:]


def _special(tokenizer: TextTokenizer, texts: list[str]) -> IntArray:
    """Tokenize texts separately, as a frame's part. Shapes: -> (3, special tokens)."""
    ids = np.concatenate([np.empty(0, dtype=np.int32), *(tokenizer.ids(text) for text in texts if text)])
    return np.stack([ids, np.full_like(ids, Role.SPECIAL), np.zeros_like(ids)])
