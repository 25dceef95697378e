from farrank_runtimes.batcher import FLOOR, PATIENCE, TokenBudget


def test_a_failed_budget_is_halved_and_stays_so_for_a_while() -> None:
    budget = TokenBudget(1024)
    budget.failed(1000)
    assert budget.tokens == 500
    for _ in range(PATIENCE - 1):
        budget.fitted()
    assert budget.tokens == 500


def test_it_grows_back_to_what_was_configured_and_no_further() -> None:
    budget = TokenBudget(1024)
    budget.failed(1024)
    for _ in range(20 * PATIENCE):
        budget.fitted()
    assert budget.tokens == 1024


def test_a_moment_without_memory_does_not_leave_batches_of_one() -> None:
    budget = TokenBudget(1024)
    for padded in (1024, 512, 256, 128, 64, 32, 17):
        budget.failed(padded)
    assert budget.tokens == 1024 * FLOOR
