"""Read pairs from standard input, a JSON array a line; predict, and print seconds and scores.

Run by `farrank_bench.contenders.predict` with the model's folder and the threads to compute with.
"""

import json
import sys
import time

import torch
from sentence_transformers import CrossEncoder


def main() -> None:
    """Load the model in fp32 on the CPU and answer until standard input ends."""
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = CrossEncoder(folder, device="cpu")
    for line in sys.stdin:
        pairs = json.loads(line)
        started_s = time.perf_counter()
        scores = model.predict(pairs, show_progress_bar=False)
        seconds = time.perf_counter() - started_s
        print(json.dumps({"seconds": seconds, "scores": scores.tolist()}), flush=True)


if __name__ == "__main__":
    main()
