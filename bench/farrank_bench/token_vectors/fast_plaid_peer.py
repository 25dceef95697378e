"""Runs fast-plaid in its own environment, which has no other package of the project.

Arguments: a folder with query.npy and documents.npy, and the number of threads. For each line of standard
input it searches once, and prints the seconds.
"""

import sys
import time
from pathlib import Path


def main() -> None:
    """Index the documents, then search among all of them for each line."""
    # They are not in the environment that runs the linters.
    import numpy as np
    import torch
    from fast_plaid.search import FastPlaid  # type: ignore[import-not-found]

    folder = Path(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    query, documents = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("query", "documents"))
    index = FastPlaid(index=str(folder / "plaid"), device="cpu")
    index.create(documents_embeddings=list(documents))
    everything = list(range(len(documents)))
    for _ in sys.stdin:
        started_s = time.perf_counter()
        index.search(query[None], top_k=len(documents), subset=everything, show_progress=False)
        print("seconds", time.perf_counter() - started_s, flush=True)


if __name__ == "__main__":
    main()
