"""The names that an application may rely on. A change here changes the contract."""

import farrank_client
from farrank_client import errors, testing


def test_public_names() -> None:
    assert sorted(farrank_client.__all__) == [
        "AccessDenied",
        "AsyncClient",
        "AsyncTransport",
        "Catalog",
        "Client",
        "DeadlineExceeded",
        "Document",
        "Evidence",
        "FailedPrecondition",
        "FarrankError",
        "FirstStageScore",
        "IndexInfo",
        "Internal",
        "InvalidArgument",
        "Limits",
        "NotFound",
        "Parity",
        "Passage",
        "Priority",
        "RankerInfo",
        "RankerVersion",
        "Ranking",
        "RerankOptions",
        "ResourceExhausted",
        "Result",
        "RetryPolicy",
        "ScoreScale",
        "Timings",
        "Tls",
        "Transport",
        "Unavailable",
        "Unimplemented",
        "Usage",
    ]
    assert all(hasattr(farrank_client, name) for name in farrank_client.__all__)
    assert hasattr(testing, "MockTransport")


def test_both_clients_have_the_same_methods() -> None:
    def names(client: type) -> set[str]:
        return {name for name in vars(client) if not name.startswith("_")}

    assert names(farrank_client.Client) == names(farrank_client.AsyncClient)
    assert names(farrank_client.Client) == {
        "close",
        "is_healthy",
        "rankers",
        "rerank",
        "search_and_rerank",
        "wait_until_healthy",
    }


def test_every_error_is_drawn_in_the_tree() -> None:
    tree = errors.__doc__ or ""
    assert all(kind.__name__ in tree for kind in errors.FarrankError.__subclasses__())
