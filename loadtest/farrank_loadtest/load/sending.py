"""Send one call and say what became of it."""

from collections.abc import Callable

from farrank_loadtest.load.sample import OK, Ask, Sample
from farrank_loadtest.targets.interface import TargetError
from farrank_loadtest.workloads.call import Call


async def send(ask: Ask, call: Call, due_s: float, now_s: Callable[[], float]) -> Sample:
    """Ask, and keep the times; `now_s` counts from the start of the loop."""
    sent_s = now_s()
    try:
        answer = await ask(call)
    except TargetError as error:
        return Sample(due_s, sent_s, now_s(), error.status, {})
    return Sample(due_s, sent_s, now_s(), OK, answer.stages_s)
