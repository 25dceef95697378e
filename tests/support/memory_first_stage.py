"""A first stage that holds its documents in memory, for services without Lucene."""

from farrank_server.first_stage import Candidate, FirstStage, IndexDescription, find_index


class MemoryFirstStage(FirstStage):
    """Finds the documents that share a word with the query, in the order in which they stand."""

    def __init__(self) -> None:
        self.texts = {"rhine": "the river Rhine", "bread": "flour and salt", "sea": "a river reaches the sea"}
        self.mean_characters = 20
        self.asked: list[tuple[str, str, int]] = []

    def describe(self) -> tuple[IndexDescription, ...]:
        return (IndexDescription("things", 1000, "bm25(k1=0.9,b=0.4)", self.mean_characters),)

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        assert timeout_s > 0
        self.asked.append((find_index(self.describe(), index).name, query, k))
        found = [key for key, text in self.texts.items() if set(text.split()) & set(query.split())]
        return [Candidate(key, self.texts[key], 3.0 - place) for place, key in enumerate(found[:k])]
