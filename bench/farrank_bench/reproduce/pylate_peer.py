"""Runs PyLate in its own environment, which has no other package of the project.

Arguments: the folder of the backbone, a file with the projection of its token vectors, and the number of
threads. The first line of standard input has the texts of the documents by id; the answer has the seconds and
the bytes of their vectors. Each further line has a query and the ids of its documents; the answer has their
scores. Lines are JSON.
"""

import json
import sys
import time

QUERY_TOKENS, DOCUMENT_TOKENS = 32, 300


def main() -> None:
    """Encode the documents once, then rank some of them for each query."""
    # They are not in the environment that runs the linters.
    import numpy as np
    import torch
    from pylate import models, rank  # type: ignore[import-not-found]

    folder, projection, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    weight = torch.from_numpy(np.load(projection))
    # The model knows no markers and no expansion.
    model = models.ColBERT(
        folder,
        device="cpu",
        embedding_size=len(weight),
        query_prefix="",
        document_prefix="",
        query_length=QUERY_TOKENS,
        document_length=DOCUMENT_TOKENS,
        do_query_expansion=False,
        skiplist_words=[],
        model_kwargs={"dtype": torch.float32},
    )
    with torch.no_grad():
        model[1].linear.weight.copy_(weight)
    texts = json.loads(sys.stdin.readline())
    started_s = time.perf_counter()
    encoded = model.encode(list(texts.values()), is_query=False, show_progress_bar=False)
    vectors = dict(zip(texts, encoded, strict=True))
    _answer({"seconds": time.perf_counter() - started_s, "bytes": sum(each.nbytes for each in encoded)})
    for line in sys.stdin:
        asked = json.loads(line)
        query = model.encode([asked["query"]], is_query=True, show_progress_bar=False)
        ids = asked["ids"]
        found = rank.rerank([ids], query, [[vectors[each] for each in ids]])[0]
        scores = {each["id"]: each["score"] for each in found}
        _answer([scores[each] for each in ids])


def _answer(value: object) -> None:
    print("answer", json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
