"""Interrupts that other code on the stack swallows."""

import contextlib
import signal

import pytest

from farrank_cli.terminated import sigterm_interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def send(number: signal.Signals) -> None:
    """Call the handler: once a runtime has run here, a signal may overflow faulthandler's small stack."""
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, None)


def swallowed(number: signal.Signals) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        send(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        send(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_that_was_swallowed_is_raised_again(number: signal.Signals) -> None:
    with sigterm_interrupts() as interrupts:
        interrupts.raise_swallowed()
        swallowed(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.raise_swallowed()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_is_only_remembered_while_held(number: signal.Signals) -> None:
    with sigterm_interrupts() as interrupts, interrupts.held():
        send(number)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            send(number)
    with sigterm_interrupts() as interrupts:
        with interrupts.held():
            pass
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_a_failure_after_an_interrupt_counts_as_the_interrupt() -> None:
    def fail(interrupted: bool) -> None:
        with sigterm_interrupts():
            if interrupted:
                swallowed(signal.SIGTERM)
            raise ValueError("for want of a tensor")

    with pytest.raises(ValueError, match="for want"):
        fail(interrupted=False)
    with pytest.raises(KeyboardInterrupt) as raised:
        fail(interrupted=True)
    assert str(raised.value.__cause__) == "for want of a tensor"


def test_handlers_are_as_before_once_left() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with sigterm_interrupts():
        assert all(
            signal.getsignal(number) != handler for number, handler in zip(SIGNALS, before, strict=True)
        )
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with sigterm_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
