"""What is made and what is chosen from are the same."""

from farrank_exporters.serving import SERVED_BY
from farrank_runtimes.choose import FASTEST


def test_what_a_server_looks_for_is_what_an_export_can_be() -> None:
    made = {
        (name, precision) for each in SERVED_BY.values() for precision in each for name in each[precision]
    }
    looked_for = {entry for entries in FASTEST.values() for entry in entries if entry[0] != "torch"}
    assert looked_for == made
