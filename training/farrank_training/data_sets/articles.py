"""Long documents given as passages: each line names its article and its position there, as in SQuAD."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_trec.errors import InputError
from farrank_trec.lines import check_id, json_object, named_string, numbered_lines
from farrank_trec.text_files import DOC_IDS, DOC_TEXTS

# Between the passages of a document. No tokenizer joins words across it.
BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class ArticlePassage:
    """A passage of an article; `split` is empty where the collection has none."""

    passage_id: str
    article: str
    place: int
    text: str
    split: str


# By the article's name, in the order of the file; passages in the order of their places.
Articles = dict[str, list[ArticlePassage]]


def read_articles(path: Path) -> Articles:
    """Read all passages into memory: `{"pid": …, "article": …, "pos": 0, "text": …}`, optionally "split".

    Raises: InputError naming file and line if a line is malformed, an id or a position appears twice, or an
        article has two splits.
    """
    articles: dict[str, dict[int, ArticlePassage]] = {}
    seen: dict[str, str] = {}
    for where, line in numbered_lines(path):
        fields = json_object(where, line)
        passage_id = check_id(where, "the id", named_string(where, fields, DOC_IDS))
        article = check_id(where, "article", named_string(where, fields, ("article",)))
        place = fields.get("pos")
        if not isinstance(place, int) or isinstance(place, bool):
            raise InputError(f"{where}: 'pos' must be a whole number, the passage's place in its article")
        split = named_string(where, fields, ("split",)) if "split" in fields else ""
        passage = ArticlePassage(passage_id, article, place, named_string(where, fields, DOC_TEXTS), split)
        if passage_id in seen:
            raise InputError(f"{where}: the id {passage_id!r} is already used at {seen[passage_id]}")
        seen[passage_id] = where
        passages = articles.setdefault(article, {})
        if place in passages:
            raise InputError(f"{where}: article {article!r} has two passages with pos {place}")
        if passages and (other := next(iter(passages.values()))).split != split:
            raise InputError(
                f"{where}: article {article!r} is of split {split!r}, but earlier lines say {other.split!r}"
            )
        passages[place] = passage
    if not articles:
        raise InputError(
            f"{path}: there are no passages; expected JSON lines with an id, article, pos and text"
        )
    return {
        article: [passages[place] for place in sorted(passages)] for article, passages in articles.items()
    }


def article_text(passages: Sequence[ArticlePassage]) -> str:
    """Join an article's passages to one document."""
    return BETWEEN.join(passage.text for passage in passages)
