"""Sweeps over a target in this process: their ends, and their results when they are interrupted."""

import asyncio
from collections.abc import Sequence

import pytest

from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.latency.plan import Caps, Objective, Plan
from farrank_loadtest.latency.steps import climb, upwards
from farrank_loadtest.latency.sweep import StepResult, probe, sweep
from farrank_loadtest.targets import Answer, CandidateDocument, TargetError
from farrank_loadtest.workloads import Call, Workload
from support.virtual_time import in_virtual_time

WORKLOAD = Workload(
    "test", (Call("a", (CandidateDocument("1", "x"),)), Call("b", (CandidateDocument("2", "y"),)))
)


class OneAtATime:
    """Answers one call after the other, in `service_s` each. Beyond 1 / `service_s` calls/s a queue grows."""

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.queries: list[str] = []
        self.rankers: set[str] = set()
        self._lock = asyncio.Lock()

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        self.queries.append(query)
        self.rankers.add(ranker)
        async with self._lock:
            await asyncio.sleep(self.service_s)
        return Answer((1.0,), {"service": self.service_s})

    async def close(self) -> None: ...


class Heard:
    """Records the progress of a sweep."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, int]] = []
        self.done: list[float] = []
        self.well_into_the_fourth = asyncio.Event()

    def began(self, amount: float, repeat: int) -> None:
        self.begun.append((amount, repeat))

    def counted(self, answered: int) -> None:
        if len(self.begun) == 4 and answered == 3:
            self.well_into_the_fourth.set()

    def finished(self, result: StepResult) -> None:
        self.done.append(result.amount)


@in_virtual_time
async def test_a_climb_finds_where_a_queue_grows() -> None:
    plan = Plan("open", Objective(90, 0.4), "constant", warm_up_s=0.1, duration_s=2.0, repeats=1, ranker="r")
    target, heard = OneAtATime(0.04), Heard()
    found = await sweep(target, WORKLOAD, plan, climb(5, 3, 0, 1000), heard)
    # The target can do 25 calls/s; at 45, the queue is one and a half seconds long after two seconds.
    assert [step.amount for step in found.steps] == heard.done == [5, 15, 45]
    assert found.highest is not None
    assert found.highest.amount == 15
    assert found.limited_by == "server"
    assert target.rankers == {"r"}
    assert target.queries[:4] == ["a", "b", "a", "b"]
    broke = found.steps[-1].whole
    assert broke.latency.max_s > 1.0
    assert broke.goodput_per_s < 25
    assert broke.stages["service"].percentile_s(50) == pytest.approx(0.04, rel=1e-2)


@in_virtual_time
async def test_repeats_draw_other_arrivals_and_the_seed_draws_the_same() -> None:
    def plan(seed: int) -> Plan:
        return Plan("open", None, warm_up_s=0, duration_s=0.5, repeats=2, seed=seed)

    async def offered(seed: int) -> list[int]:
        found = await sweep(OneAtATime(0.0), WORKLOAD, plan(seed), upwards([100]), Heard())
        return [repeat.offered for repeat in found.steps[0].repeats]

    first = await offered(1)
    assert first == await offered(1)
    assert len({*first, *await offered(2)}) > 1


@in_virtual_time
async def test_a_repeat_lasts_as_long_as_planned_where_nothing_more_is_due() -> None:
    plan = Plan("open", None, "constant", warm_up_s=0, duration_s=0.5, repeats=1)
    found = await sweep(OneAtATime(0.0), WORKLOAD, plan, upwards([4]), Heard())
    # Due at 0 and 0.25 s and answered at once, which is still 4 calls/s.
    assert found.steps[0].whole.measured_s == pytest.approx(0.5, abs=0.01)
    assert found.steps[0].whole.goodput_per_s == pytest.approx(4, rel=0.05)


class Leaving(OneAtATime):
    """Answers some calls and then disappears; with `stays`, it is there for callers that call alone."""

    def __init__(self, answers: int, *, stays: bool) -> None:
        super().__init__(0.01)
        self._answers = answers
        self._stays = stays
        self._at_once = 0

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        self._at_once += 1
        try:
            number = len(self.queries)
            answer = await super().rerank(query, documents, ranker=ranker, timeout_s=timeout_s)
            if number >= self._answers and not (self._stays and self._at_once == 1):
                raise TargetError("UNAVAILABLE", "connection refused")
            return answer
        finally:
            self._at_once -= 1


@in_virtual_time
async def test_a_sweep_ends_where_the_server_is_gone() -> None:
    plan = Plan("closed", Objective(50, 5), warm_up_s=0, duration_s=0.5, repeats=3)
    found = await sweep(Leaving(10, stays=False), WORKLOAD, plan, upwards([2, 4]), Heard())
    assert found.target_gone
    assert found.note == "the server no longer answers: connection refused [UNAVAILABLE]"
    (step,) = found.steps
    assert len(step.repeats) == 1
    assert step.whole.statuses["OK"] == 10
    # Its failures say nothing about the load.
    assert (step.held, found.limited_by) == (None, None)


@in_virtual_time
async def test_a_server_that_refuses_many_and_answers_one_is_there() -> None:
    plan = Plan("closed", Objective(99, 5), warm_up_s=0, duration_s=0.3, repeats=1)
    found = await sweep(Leaving(0, stays=True), WORKLOAD, plan, upwards([4]), Heard())
    assert (found.target_gone, found.note) == (False, None)
    assert found.steps[0].whole.statuses["UNAVAILABLE"] > 0
    assert found.steps[0].held is False


@in_virtual_time
async def test_caps_end_a_sweep_and_say_so() -> None:
    def plan(caps: Caps) -> Plan:
        return Plan("open", Objective(99, 5), "constant", 0.0, 0.5, repeats=1, caps=caps)

    found = await sweep(OneAtATime(0), WORKLOAD, plan(Caps(calls=60)), climb(20, 2, 0, 1e4), Heard())
    # 10 and 20 calls are sent; 40 more would make 70.
    assert [step.amount for step in found.steps] == [20, 40]
    assert found.note is not None
    assert "--max-calls" in found.note
    found = await sweep(OneAtATime(0), WORKLOAD, plan(Caps(seconds=1.2)), climb(20, 2, 0, 1e4), Heard())
    assert [step.amount for step in found.steps] == [20, 40]
    assert found.note is not None
    assert "--max-load-s" in found.note

    closed = Plan("closed", None, warm_up_s=0, duration_s=5, repeats=2, caps=Caps(calls=30))
    found = await sweep(OneAtATime(0.001), WORKLOAD, closed, upwards([2, 4]), Heard())
    assert [step.whole.offered for step in found.steps] == [30]
    assert found.note is not None
    assert "--max-calls" in found.note


@in_virtual_time
async def test_cancelling_keeps_finished_loads_and_the_part_of_the_running_one() -> None:
    plan = Plan("open", None, "constant", warm_up_s=0, duration_s=0.4, repeats=2)
    heard = Heard()
    running = asyncio.create_task(sweep(OneAtATime(0), WORKLOAD, plan, upwards([20, 50, 100]), heard))
    await heard.well_into_the_fourth.wait()
    running.cancel()
    found = await running
    assert heard.begun == [(20, 1), (20, 2), (50, 1), (50, 2)]
    assert found.interrupted
    assert [step.amount for step in found.steps] == [20, 50]
    whole, part = found.steps[1].repeats
    assert whole.offered == 20
    assert 3 <= part.offered < 20
    assert part.measured_s < 0.4


@in_virtual_time
async def test_cancelling_before_anything_was_measured_leaves_nothing() -> None:
    plan = Plan("open", None, "constant", warm_up_s=30, duration_s=1, repeats=1)
    running = asyncio.create_task(sweep(OneAtATime(0), WORKLOAD, plan, upwards([20]), Heard()))
    await asyncio.sleep(0.2)
    running.cancel()
    found = await running
    assert (found.interrupted, found.steps) == (True, ())


@in_virtual_time
async def test_a_probe_fails_with_the_targets_words() -> None:
    class Refusing(OneAtATime):
        async def rerank(
            self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
        ) -> Answer:
            raise TargetError("NOT_FOUND", "no such\nranker")

    plan = Plan("open", None)
    await probe(OneAtATime(0), WORKLOAD, plan)
    with pytest.raises(TargetFailed, match=r"^no such ranker \[NOT_FOUND\]$") as raised:
        await probe(Refusing(0), WORKLOAD, plan)
    assert raised.value.status == "NOT_FOUND"
