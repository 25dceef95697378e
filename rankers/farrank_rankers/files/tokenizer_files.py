"""A tokenizer as it lies in a folder, opened with the `tokenizers` library alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from farrank_rankers.errors import SourceError
from farrank_rankers.files.json_files import read_json, read_text


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The texts of `tokenizer.json` and `tokenizer_config.json` ("{}" where there is none)."""

    tokenizer_json: str
    config_json: str = "{}"

    @classmethod
    def read(cls, folder: Path) -> "TokenizerFiles":
        """Read both files.

        Raises: SourceError naming the file that is missing or not JSON.
        """
        path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
        if not path.is_file():
            raise SourceError(
                f"{path} is missing; a tokenizer without it is converted once with "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        config = read_json(config_path) if config_path.is_file() else {}
        return cls(read_text(path), json.dumps(config, ensure_ascii=False, sort_keys=True))

    def write(self, folder: Path) -> None:
        """Write both files."""
        (folder / "tokenizer.json").write_text(self.tokenizer_json, encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(self.config_json, encoding="utf-8")

    @property
    def config(self) -> dict[str, Any]:
        """Parse `tokenizer_config.json`."""
        parsed: dict[str, Any] = json.loads(self.config_json)
        return parsed

    def open(self) -> Tokenizer:
        """Build the tokenizer, without the truncation and padding that its file may ask for.

        Raises: SourceError if tokenizer.json is damaged.
        """
        try:
            tokenizer = Tokenizer.from_str(self._with_case_of_config())
        except Exception as error:  # the library raises bare Exception
            raise SourceError(f"tokenizer.json cannot be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _with_case_of_config(self) -> str:
        """Let `do_lower_case` of the configuration win over the file, as transformers does for BERT."""
        parsed = json.loads(self.tokenizer_json)
        normalizer, lower = parsed.get("normalizer") or {}, self.config.get("do_lower_case")
        if normalizer.get("type") != "BertNormalizer" or lower in (None, normalizer.get("lowercase")):
            return self.tokenizer_json
        return json.dumps(parsed | {"normalizer": normalizer | {"lowercase": lower}})

    def pad_id(self, tokenizer: Tokenizer, fallback: int | None) -> int:
        """Find the padding token: the configuration's, the file's, or the backbone's, in this order.

        Raises: SourceError if none is named.
        """
        token = self.config.get("pad_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        padding = json.loads(self.tokenizer_json).get("padding") or {}
        for pad_id in (content and tokenizer.token_to_id(content), padding.get("pad_id"), fallback):
            if isinstance(pad_id, int):
                return pad_id
        raise SourceError("tokenizer_config.json names no pad_token, and no other file gives a padding id")
