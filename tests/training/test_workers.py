"""Processes that read ahead, forked as `farrank train` forks them.

They run in a fresh process: the tests' own process has used gRPC and other native threads, and a fork has
killed it.
"""

import sys
from pathlib import Path

from support import forked

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader
from farrank_rankers.files.open import open_ranker
from farrank_training.batches import Collator
from farrank_training.configuration import TrainingConfig
from farrank_training.validation import rerank
from support.training_groups import triples, validation

for folder in sys.argv[1:]:
    ranker = open_ranker(folder)
    groups, collator = triples(4), Collator(ranker.reader)
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(groups, batch_size=1, collate_fn=collator, **workers)
    for batch, group in zip(loader, groups, strict=True):
        here = collator([group])
        assert batch["counts"] == here["counts"]
        assert all(map(torch.equal, batch["batch"], here["batch"]))
    ahead, here = (rerank(ranker, validation(2), TrainingConfig(workers=count)) for count in (1, 0))
    assert ahead == here and len(here) == 2
    print(ranker.spec.family)
"""


def test_processes_that_read_ahead_make_the_same_batches_and_scores(tiny_rankers: dict[str, Path]) -> None:
    families = ["maxp", "cedr-knrm", "biencoder"]
    done = forked.run([sys.executable, "-c", SCRIPT, *(tiny_rankers[family] for family in families)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == families
