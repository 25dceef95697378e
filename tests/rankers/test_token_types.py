"""Token types equal transformers', for tokenizers that transformers itself saves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from farrank_rankers.files.open import open_reader
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from support.tiny_tokenizers import (
    OF_PIECES,
    fast_class,
    fast_class_name,
    pieces_of,
    save_tokenizer,
    wordpiece,
)

# Tokenizers that read more than text (LayoutLM and similar), that require another library (RoFormer's), or
# that have special tokens at fixed places in transformers 5.
READ_MORE = {"layoutlmv2", "layoutlmv3", "layoutxlm", "lilt", "markuplm", "udop", "roformer"}
FIXED = {"camembert", "rembert"}

SINCE_5 = int(transformers.__version__.partition(".")[0]) >= 5
# transformers' tokenizer class for each type of model.
FAST = {each: fast_class(each) for each in TOKENIZER_MAPPING_NAMES if fast_class(each) is not None}


def has_token_types(model_type: str) -> bool:
    try:
        return (getattr(AutoConfig.for_model(model_type), "type_vocab_size", None) or 0) > 1
    except ValueError:  # a tokenizer without a model of the same name
        return False


# All types whose models distinguish the texts of a pair, and those that the papers use.
MODEL_TYPES = sorted(
    {each for each in FAST if has_token_types(each)}
    - READ_MORE
    - {"splinter"}
    - (FIXED if SINCE_5 else set())
    | {"distilbert", "deberta-v2", "llama", "mpnet", "xlm-roberta-xl"} & FAST.keys()
)


def without(path: Path, key: str) -> None:
    values = json.loads(path.read_text())
    del values[key]
    path.write_text(json.dumps(values))


def drop_class(folder: Path) -> None:
    without(folder / "tokenizer_config.json", "tokenizer_class")


def drop_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()


def name_class_in_model_config(folder: Path) -> None:
    """Older releases name the class there. Here it differs from the model's own."""
    drop_class(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "DistilBertTokenizer"}))


CHANGES = (drop_class, drop_config, name_class_in_model_config)
# In transformers 5 a class defines most of a tokenizer: only BERT and similar can be read as another class.
CHANGED = [each for each in MODEL_TYPES if not SINCE_5 or fast_class_name(each) == "BertTokenizer"]


@pytest.mark.parametrize(
    ("model_type", "change"),
    [*((each, None) for each in MODEL_TYPES), *((each, change) for each in CHANGED for change in CHANGES)],
)
def test_a_pair_has_the_token_types_of_transformers(
    model_type: str, change: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    # BERT's pairs have a second type, whatever the model. The question is whether transformers passes it on.
    tokenizer = OF_PIECES[pieces_of(FAST[model_type])]()
    save_tokenizer(tokenizer, tmp_path, model_type)
    assert "model_input_names" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    config = AutoConfig.for_model(model_type, num_labels=1, pad_token_id=tokenizer.token_to_id("[PAD]"))
    config.architectures = ["ForSequenceClassification"]
    config.save_pretrained(tmp_path)
    if change is not None:
        change(tmp_path)
    reader = open_reader(tmp_path, window=20, max_query_tokens=8)
    query, document = "a query", "the long document"
    chunk = reader.split(reader.read_document(document))[0]
    found = reader.chunk_input(reader.read_query(query), chunk)
    encoded = AutoTokenizer.from_pretrained(tmp_path)(query, document)
    assert found.input_ids.tolist() == encoded["input_ids"]
    nothing = [0] * found.tokens
    # A model without an embedding for a second type gets none.
    expected = encoded.get("token_type_ids", nothing) if has_token_types(model_type) else nothing
    assert found.token_type_ids.tolist() == expected


def test_classes_and_types_are_those_of_transformers() -> None:
    """The tables have every class of transformers, and no other."""
    nothing = TokenizerFiles("{}")
    for model_type, kind in FAST.items():
        gives = "token_type_ids" in kind.model_input_names
        saved = {"tokenizer_class": kind.__name__} | ({"backend": "tokenizers"} if SINCE_5 else {})
        named = TokenizerFiles("{}", json.dumps(saved))
        assert named.gives_token_types("bert", None) is gives, kind
        # Releases since 5 always name the class, so a file without it is from an earlier one.
        if has_token_types(model_type) and not SINCE_5:
            assert nothing.gives_token_types(model_type, None) is gives, model_type


def test_a_tokenizer_that_names_its_inputs_is_believed() -> None:
    config = {"tokenizer_class": "BigBirdTokenizer", "model_input_names": ["input_ids", "token_type_ids"]}
    assert TokenizerFiles("{}", json.dumps(config)).gives_token_types("big_bird", None)


# Options of BERT's normalizer, with their names in tokenizer_config.json and in tokenizer.json.
OPTIONS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
TEXT = "A L\u00f3ng Query \u6f22\u5b57"


def say(folder: Path, option: str, says: bool | str | None) -> list[int]:
    """Make both files disagree on an option. Returns the tokens according to tokenizer.json."""
    config, file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    values = json.loads(config.read_text())
    if says == "nothing":
        values.pop(option, None)
    else:
        values[option] = says
    config.write_text(json.dumps(values))
    if says is not False:  # otherwise tokenizer.json lowercases and so on, as it was saved
        parsed = json.loads(file.read_text())
        parsed["normalizer"][OPTIONS[option]] = False
        file.write_text(json.dumps(parsed))
    files = TokenizerFiles(file.read_text(), '{"tokenizer_class": "Another"}')
    return [int(each) for each in TextTokenizer(files).ids(TEXT)]


def tokens(folder: Path) -> list[int]:
    """Return the tokens of the text after comparing them with transformers'."""
    found = [int(each) for each in TextTokenizer(TokenizerFiles.read(folder)).ids(TEXT)]
    assert found == AutoTokenizer.from_pretrained(folder)(TEXT, add_special_tokens=False)["input_ids"]
    return found


# Classes like BERT's, and others. In transformers 5 DeBERTa's and BigBird's are not made of BERT's pieces.
NORMALIZED = ["bert", "electra", "mpnet", "fnet", *([] if SINCE_5 else ["deberta-v2", "big_bird"])]


# A null elsewhere is an error in transformers.
@pytest.mark.parametrize(
    ("option", "says"),
    [*((option, says) for option in OPTIONS for says in (False, "nothing")), ("strip_accents", None)],
)
@pytest.mark.parametrize("model_type", NORMALIZED)
def test_texts_are_normalized_as_in_transformers(
    model_type: str, option: str, says: bool | str | None, tmp_path: Path
) -> None:
    """The class decides which of two disagreeing files wins, and what a missing option means."""
    save_tokenizer(wordpiece(), tmp_path, model_type)
    as_in_file = say(tmp_path, option, says)
    found = tokens(tmp_path)
    ignored = model_type == "mpnet" and option == "tokenize_chinese_chars" and not SINCE_5
    assert (found != as_in_file) is (model_type in ("bert", "electra", "mpnet") and not ignored)


def test_a_bert_without_a_class_is_normalized_as_in_transformers(tmp_path: Path) -> None:
    save_tokenizer(wordpiece(), tmp_path, "bert")
    drop_class(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    as_in_file = say(tmp_path, "do_lower_case", "nothing")
    assert tokens(tmp_path) != as_in_file
