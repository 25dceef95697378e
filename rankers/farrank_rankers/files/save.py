"""Save a ranker as an artifact, a folder of our own."""

import json
from pathlib import Path

from farrank_rankers.files.depth_file import DEPTH_FILE
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.weights import FILE, distinct, write_weights
from farrank_rankers.ranker import Ranker


def save_ranker(ranker: Ranker, folder: str | Path) -> None:
    """Write ranker.json, config.json (the backbone's), model.safetensors and the tokenizer's files.

    `open_ranker(folder)` gives the same scores to the bit, for weights in fp32.
    Raises: WeightsError naming the file that cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(dict(ranker.backbone_config), indent=2) + "\n", encoding="utf-8"
    )
    ranker.reader.tokenizer.files.write(folder)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in distinct(ranker).items()}
    write_weights(tensors, folder / FILE, ranker.weights_digest)
    (folder / DEPTH_FILE).unlink(missing_ok=True)  # of a ranker that was there before
    # Last, so that a folder whose writing was cut short is not taken for an artifact.
    (folder / SPEC_FILE).write_text(ranker.spec.to_json(), encoding="utf-8")
