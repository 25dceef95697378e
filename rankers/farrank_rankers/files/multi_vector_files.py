"""Published multi-vector models: folders of sentence-transformers 6, of PyLate, and of Stanford's ColBERT.

All are read as sentence-transformers 6 reads them. Folders of PyLate, and those with Stanford's weights
beside modules.json, list only a transformer and dense layers: skipped punctuation, norm and expansion are
PyLate's code, and belong to the model all the same.
"""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from farrank_rankers.errors import SourceError
from farrank_rankers.family import HeadLayer, MaxSimOptions
from farrank_rankers.files.dense_layers import hidden_size, read_dense
from farrank_rankers.files.saved_modules import (
    CONFIG,
    MODULES,
    kind_of,
    listed_modules,
    module_kinds,
    read_config,
    read_prompts,
)
from farrank_rankers.json_values import read_json, read_value, short
from farrank_rankers.tokenizer import TextTokenizer

STANFORD = "HF_ColBERT"
METADATA = "artifact.metadata"
# Stanford's name of the projection of token vectors.
PROJECTION = "linear.weight"
TRANSFORMER = "sentence_bert_config.json"
_MASK = "MultiVectorMask"

# Lengths beyond this are transformers' way to say that a tokenizer has no limit.
_NO_LIMIT = 10**9

# The keys of sentence-transformers' file of a transformer that change no vector of a text, or are read here.
_KNOWN_OF_TRANSFORMER = frozenset(
    """
    document_length do_lower_case max_seq_length modality_config model_args module_output_name
    processing_kwargs query_expansion query_length transformer_task unpad_inputs
    """.split()  # noqa: SIM905
)


class Lengths(NamedTuple):
    """The most tokens of a query's and of a document's input, with those around the text; None: no limit."""

    query: int | None
    document: int | None


def is_multi_vector(folder: Path) -> bool:
    """Whether a folder is a multi-vector model's, in any of the layouts.

    Raises: SourceError naming a damaged file.
    """
    if read_config(folder).get("model_type") in ("MultiVectorEncoder", "ColBERT"):
        return True
    if (folder / MODULES).is_file():
        types = [str(each["type"]) for each in listed_modules(folder)]
        if any(each.startswith("pylate.") or each.endswith(_MASK) for each in types):
            return True
    return _is_stanford(folder)


def _is_stanford(folder: Path) -> bool:
    path = folder / "config.json"
    named = read_json(path).get("architectures") if path.is_file() else None
    return isinstance(named, list) and STANFORD in named


def dense_folders(folder: Path) -> list[Path]:
    """List the folders with the weights of the dense layers on token vectors; none in Stanford's layout."""
    if not (folder / MODULES).is_file():
        return []
    return [folder / str(each["path"]) for each in listed_modules(folder) if kind_of(each) == "Dense"]


def maxsim_options(
    folder: Path,
    transformer: Path,
    config: Mapping[str, Any],
    tokenizer: TextTokenizer,
    projection: Sequence[int],
) -> tuple[MaxSimOptions, Lengths]:
    """Read how a multi-vector model makes and compares vectors, and its lengths.

    `config` is the transformer's config.json; `projection` is the shape of Stanford's linear.weight, () if
    the layout is another.
    Raises: SourceError naming the file and the part that is not supported.
    """
    if not (folder / MODULES).is_file():
        return _stanford_options(folder, tokenizer, projection)
    layout = _Layout(folder, transformer, config, tokenizer)
    saved = read_config(folder)
    is_own = saved.get("model_type") == "MultiVectorEncoder" or _MASK in module_kinds(folder)
    return layout.of_sentence_transformers() if is_own else layout.of_pylate()


def _stanford_options(
    folder: Path, tokenizer: TextTokenizer, projection: Sequence[int]
) -> tuple[MaxSimOptions, Lengths]:
    path = folder / METADATA
    found = read_json(path) if path.is_file() else {}

    def value(kind: Any, key: str, otherwise: Any) -> Any:
        given = found.get(key)
        return otherwise if given is None else read_value(kind, given, f"{path}: {key}", SourceError)

    if value(str, "similarity", "cosine") != "cosine":
        raise SourceError(f"{path}: similarity is {short(found['similarity'])}; only cosine is served")
    if len(projection) != 2:
        raise SourceError(f"{folder / 'model.safetensors'} lacks the tensor {PROJECTION}, the projection")
    query_marker, query = marked(value(str, "query_token_id", "[unused0]") + " ", tokenizer)
    document_marker, document = marked(value(str, "doc_token_id", "[unused1]") + " ", tokenizer)
    length = value(int, "query_maxlen", 32)
    options = MaxSimOptions(
        query_marker=query_marker,
        document_marker=document_marker,
        query_prefix=query,
        document_prefix=document,
        expand_to=length,
        expansion_token=_expansion_token(None, tokenizer, path),
        expansion_attended=value(bool, "attend_to_mask_tokens", False),
        skipped=token_ids(string.punctuation, tokenizer) if value(bool, "mask_punctuation", True) else (),
        head=(HeadLayer("dense", projection[0], bias=False),),
    )
    return options, Lengths(length, value(int, "doc_maxlen", None))


class _Layout:
    """A folder with modules.json, of sentence-transformers or PyLate."""

    def __init__(
        self, folder: Path, transformer: Path, config: Mapping[str, Any], tokenizer: TextTokenizer
    ) -> None:
        self.folder, self.config, self.tokenizer = folder, config, tokenizer
        self.saved, self.path = read_config(folder), folder / CONFIG
        self.transformer_path = transformer / TRANSFORMER
        self.transformer = read_json(self.transformer_path) if self.transformer_path.is_file() else {}
        self._check_transformer()

    def of_sentence_transformers(self) -> tuple[MaxSimOptions, Lengths]:
        """Read a folder of sentence-transformers 6."""
        modules, kinds = listed_modules(self.folder), module_kinds(self.folder)
        count = kinds.count("Dense")
        beginning, rest = kinds[: 1 + count], kinds[1 + count :]
        is_known = beginning == ["Transformer", *["Dense"] * count] and _MASK in rest
        if not is_known or sorted(rest) not in ([_MASK], [_MASK, "Normalize"]):
            raise SourceError(
                f"{self.folder / MODULES} lists {', '.join(kinds)[:100]}; of a multi-vector model only "
                f"Transformer, Dense, {_MASK} and Normalize are read, in this order"
            )
        similarity = self._value(
            Literal["maxsim", "meanmaxsim"] | None, self.saved, "similarity_fn_name", self.path
        )
        prompts = read_prompts(self.folder)
        named = next((name for name in ("document", "passage", "corpus") if name in prompts), "")
        query_marker, query = self._marker_of(prompts.get("query", ""))
        document_marker, document = self._marker_of(prompts.get(named, ""))
        for module, kind in zip(modules, kinds, strict=True):
            if kind == "Normalize":
                path = self.folder / str(module["path"]) / "config.json"
                where = read_json(path).get("module_input_name") if path.is_file() else None
                if where != "token_embeddings":
                    raise SourceError(
                        f"{path}: module_input_name is {short(where)}; it must be token_embeddings"
                    )
        expansion, cap = self._expansion(self._value(dict | None, self.transformer, "query_expansion"))
        most = self._longest()
        query_length = self._value(int | None, self.transformer, "query_length")
        document_length = self._value(int | None, self.transformer, "document_length")
        options = MaxSimOptions(
            query_marker=query_marker,
            document_marker=document_marker,
            query_prefix=query,
            document_prefix=document,
            skipped=self._skipped(self.folder / str(modules[kinds.index(_MASK)]["path"]) / "config.json"),
            head=self._head(),
            normalize="Normalize" in kinds,
            mean=similarity == "meanmaxsim",
            **expansion,
        )
        return options, Lengths(cap or query_length or most, document_length or most)

    def of_pylate(self) -> tuple[MaxSimOptions, Lengths]:
        """Read a folder of PyLate, or one of Stanford's weights with PyLate's modules."""
        kinds = module_kinds(self.folder)
        if kinds[0] != "Transformer" or set(kinds[1:]) != {"Dense"}:
            raise SourceError(
                f"{self.folder / MODULES} lists {', '.join(kinds)[:100]}; of PyLate's models only "
                "Transformer and Dense are read"
            )

        def value(kind: Any, key: str, otherwise: Any) -> Any:
            given = self._value(kind, self.saved, key, self.path)
            return otherwise if given is None else given

        prompts = read_prompts(self.folder)
        texts = []
        for side in ("query", "document"):
            prefix = value(str | None, f"{side}_prefix", "")
            prompt = prompts.get(side, "")
            marker, rest = marked(prefix, self.tokenizer)
            texts.append((marker, rest + prompt.removeprefix(prefix)))
        length = value(int | None, "query_length", 32)
        expansion: dict[str, Any] = {}
        if value(bool | None, "do_query_expansion", True):
            attended = value(bool | None, "attend_to_expansion_tokens", None)
            if attended is None:
                attended = value(bool | None, "attend_to_mask_tokens", False)
            expansion, _ = self._expansion({"strategy": "fixed", "attend": attended, "length": length})
        words = value(tuple[str, ...] | None, "skiplist_words", None)
        options = MaxSimOptions(
            query_marker=texts[0][0],
            query_prefix=texts[0][1],
            document_marker=texts[1][0],
            document_prefix=texts[1][1],
            skipped=token_ids(string.punctuation if words is None else words, self.tokenizer),
            head=self._head(),
            **expansion,
        )
        return options, Lengths(length, value(int | None, "document_length", None) or self._longest())

    def _check_transformer(self) -> None:
        unknown = sorted(self.transformer.keys() - _KNOWN_OF_TRANSFORMER)
        if unknown:
            raise SourceError(f"{self.transformer_path}: {short(unknown[0])} is unknown here")
        task = self.transformer.get("transformer_task", "feature-extraction")
        if task != "feature-extraction":
            raise SourceError(
                f"{self.transformer_path}: transformer_task is {short(task)}; "
                "only feature-extraction is served"
            )
        for key in ("processing_kwargs", "model_args"):
            if self.transformer.get(key):
                raise SourceError(
                    f"{self.transformer_path}: {key} is {short(self.transformer[key])}; it must be empty"
                )
        if self.transformer.get("do_lower_case"):
            # Outside the tokenizer, lowercasing would shift offsets.
            raise SourceError(
                f"{self.transformer_path}: do_lower_case is true; tokenizer.json must lowercase instead"
            )

    def _value(self, kind: Any, values: Mapping[str, Any], key: str, path: Path | None = None) -> Any:
        return read_value(kind, values.get(key), f"{path or self.transformer_path}: {key}", SourceError)

    def _marker_of(self, prompt: str) -> tuple[int | None, str]:
        """Divide a prompt into the added token at its beginning, and the text behind it."""
        encoded = self.tokenizer.tokenizer.encode(prompt, add_special_tokens=False)
        added = self.tokenizer.tokenizer.get_added_tokens_decoder()
        token = added.get(encoded.ids[0]) if encoded.ids else None
        if token is None or not prompt.startswith(token.content):
            return None, prompt
        return encoded.ids[0], prompt.removeprefix(token.content)

    def _expansion(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], int | None]:
        """Read how queries are filled up; also return their length if it is fixed."""
        if given is None:
            return {}, None
        key = f"{self.transformer_path}: query_expansion"
        unknown = sorted(given.keys() - {"strategy", "attend", "token", "length"})
        if unknown:
            raise SourceError(f"{key}: {short(unknown[0])} is unknown here")
        strategy = read_value(Literal["fixed", "min"], given.get("strategy"), f"{key}.strategy", SourceError)
        length = read_value(int, given.get("length"), f"{key}.length", SourceError)
        if length < 1:
            raise SourceError(f"{key}.length is {length}; it must be at least 1")
        token = read_value(str | None, given.get("token"), f"{key}.token", SourceError)
        found = {
            "expand_to": length,
            "expansion_token": _expansion_token(token, self.tokenizer, self.transformer_path),
            "expansion_attended": read_value(bool, given.get("attend", False), f"{key}.attend", SourceError),
        }
        return found, length if strategy == "fixed" else None

    def _longest(self) -> int | None:
        """Find the most tokens of an input that sentence-transformers reads; None: as the backbone."""
        path = self.folder / "tokenizer_config.json"
        limits = (
            self._value(int | None, self.transformer, "max_seq_length"),
            read_value(
                int | None,
                self.tokenizer.files.config.get("model_max_length"),
                f"{path}: model_max_length",
                SourceError,
            ),
        )
        found = next((limit for limit in limits if limit is not None), None)
        return None if found is None or found > _NO_LIMIT else found

    def _skipped(self, path: Path) -> tuple[int, ...]:
        """Read the tokens whose vectors are not compared."""
        values = read_json(path) if path.is_file() else {}
        if values.get("keep_only_token_ids"):
            raise SourceError(
                f"{path}: keep_only_token_ids is set; only models that compare all tokens are served"
            )
        words = self._value(tuple[str, ...] | None, values, "skiplist_words", path) or ()
        tasks = values.get("skiplist_tasks") or ["document"]
        if words and tasks not in (["document"], "document"):
            raise SourceError(f"{path}: skiplist_tasks is {short(tasks)}; only ['document'] is served")
        return token_ids(words, self.tokenizer)

    def _head(self) -> tuple[HeadLayer, ...]:
        width = hidden_size(self.config, self.transformer_path.parent)
        layers: list[HeadLayer] = []
        for folder in dense_folders(self.folder):
            layers.append(read_dense(folder / "config.json", width, "token_embeddings"))
            width = layers[-1].width
        return tuple(layers)


def marked(prefix: str, tokenizer: TextTokenizer) -> tuple[int | None, str]:
    """Divide a prefix of PyLate or Stanford into its token, which goes in by id, and the text behind it.

    The token is the whole prefix, or its first word; a prefix that the tokenizer has not is only text.
    """
    words = prefix.split(None, 1)
    for name in (prefix, words[0]) if words else ():
        token = tokenizer.tokenizer.token_to_id(name)
        if token is not None:
            return token, prefix[len(name) :]
    return None, prefix


def token_ids(words: Sequence[str], tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Look words up that are a token; others are left out, or every unknown word would be skipped."""
    found = {tokenizer.tokenizer.token_to_id(word) for word in words}
    return tuple(sorted(token for token in found if token is not None))


def _expansion_token(token: str | None, tokenizer: TextTokenizer, path: Path) -> int:
    """Find the token that fills queries up: the one named, [MASK], or the last of a text.

    Raises: SourceError if the tokenizer has none.
    """
    find = tokenizer.tokenizer.token_to_id
    if token is not None:
        names = [token]
    else:
        mask, end = (tokenizer.special_name(f"{kind}_token") for kind in ("mask", "eos"))
        names = [name for name in (mask, "[MASK]", "<mask>", end) if name]
    found = next((each for each in map(find, names) if each is not None), None)
    if found is None:
        raise SourceError(
            f"{path}: tokenizer.json lacks the token of query_expansion, {' or '.join(names) or '[MASK]'}"
        )
    return found
