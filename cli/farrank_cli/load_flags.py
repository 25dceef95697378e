"""The flags that say how much load is made and how each load is measured, and the plan they make."""

import argparse

from farrank_cli.exit_codes import CommandError
from farrank_cli.numbers import at_least, listed, not_negative, positive
from farrank_loadtest.latency.objective import FORM, parse_objective
from farrank_loadtest.latency.plan import Plan
from farrank_loadtest.latency.steps import Climb, Listed, Steps
from farrank_loadtest.load.caps import Caps
from farrank_loadtest.load.schedule import SCHEDULES

_CAPS = Caps()
# Rates have three digits: a climb by less would stand still.
_LEAST_FACTOR = 1.01


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in groups."""
    load = parser.add_argument_group("load, one of")
    kind = load.add_mutually_exclusive_group(required=True)
    kind.add_argument("--rates", type=listed(positive), metavar="R,…", help="calls/s, open loop")
    kind.add_argument(
        "--climb", type=positive, metavar="R", help="from R calls/s up until the objective breaks, open loop"
    )
    kind.add_argument("--callers", type=listed(at_least(1)), metavar="N,…", help="callers, closed loop")
    load.add_argument(
        "--factor", type=positive, default=1.6, metavar="F", help="from rate to rate of a climb (%(default)g)"
    )
    load.add_argument(
        "--refine",
        type=at_least(0),
        default=3,
        metavar="N",
        help="rates between, where it broke (%(default)d)",
    )
    load.add_argument(
        "--arrivals", choices=SCHEDULES, default="poisson", help="of an open loop (%(default)s)"
    )

    each = parser.add_argument_group("each load")
    each.add_argument(
        "--objective", metavar="pN=TIME", help=f"{FORM}; the first load that breaks it is the last of a list"
    )
    for name, reads, default, what in (
        ("warm-up-s", not_negative, 5.0, "sent and not counted"),
        ("duration-s", positive, 20.0, "measured"),
        ("timeout-s", positive, 10.0, "deadline of a call"),
    ):
        each.add_argument(f"--{name}", type=reads, default=default, metavar="S", help=f"{what} (%(default)g)")
    each.add_argument("--repeats", type=at_least(1), default=3, metavar="N", help="%(default)d")
    each.add_argument("--seed", type=int, default=1, help="of arrivals and made-up texts (%(default)d)")

    caps = parser.add_argument_group("caps", "What no slip of the finger goes beyond.")
    caps.add_argument(
        "--max-rate", type=positive, default=_CAPS.rate_per_s, metavar="R", help="calls/s (%(default)g)"
    )
    caps.add_argument(
        "--max-load-s", type=positive, default=_CAPS.seconds, metavar="S", help="of all loads (%(default)g)"
    )
    for name, most, what in (
        ("callers", _CAPS.callers, "at the same time"),
        ("in-flight", _CAPS.in_flight, "unanswered calls; those beyond are not sent and count as failed"),
        ("calls", _CAPS.calls, "calls of all loads"),
    ):
        caps.add_argument(
            f"--max-{name}", type=at_least(1), default=most, metavar="N", help=f"{what} (%(default)d)"
        )


def read_plan(args: argparse.Namespace) -> tuple[Plan, Steps]:
    """Make the plan, and the loads it is run at.

    Raises: LoadtestError if a value cannot be, or the caps forbid what is asked for; CommandError for flags
    that do not go together.
    """
    plan = Plan(
        loop="open" if args.callers is None else "closed",
        objective=None if args.objective is None else parse_objective(args.objective),
        arrivals=args.arrivals,
        warm_up_s=args.warm_up_s,
        duration_s=args.duration_s,
        repeats=args.repeats,
        timeout_s=args.timeout_s,
        seed=args.seed,
        ranker=args.ranker,
        caps=Caps(args.max_rate, args.max_callers, args.max_in_flight, args.max_calls, args.max_load_s),
    )
    if args.climb is not None:
        return plan, _climb(args, plan)
    amounts: list[float] = args.rates or args.callers
    for amount in amounts:
        plan.check_amount(amount)
    # All of a list or none of it: better to learn now than after half of the time.
    plan.caps.check_total(sum(map(plan.calls, amounts)), plan.seconds(len(amounts)))
    return plan, Listed(amounts)


def _climb(args: argparse.Namespace, plan: Plan) -> Climb:
    if plan.objective is None:
        raise CommandError("--climb: needs an --objective to break")
    if args.factor < _LEAST_FACTOR:
        raise CommandError(f"--factor {args.factor:g}: must be at least {_LEAST_FACTOR:g}")
    plan.check_amount(args.climb)
    plan.caps.check_total(plan.calls(args.climb), plan.seconds(1))
    return Climb(args.climb, args.factor, args.refine, plan.caps.rate_per_s)
