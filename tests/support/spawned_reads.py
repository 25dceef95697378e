"""Code for a spawned process, which can import this module but no test."""

from collections.abc import Sequence
from multiprocessing.connection import Connection

from farrank_training.text_store import TextStore


def send_texts(to: "Connection[list[str], None]", store: TextStore, doc_ids: Sequence[str]) -> None:
    """Read texts in this process, and send them to the other one."""
    to.send([store.text(doc_id) for doc_id in doc_ids])
