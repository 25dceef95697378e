"""The end of `make demo`, after it has shown everything."""

import os
import pty
import signal
import subprocess
import sys

URL = "http://127.0.0.1:1/"
COMMAND = [sys.executable, "-c", f"from farrank_demo.__main__ import stay_up; stay_up({URL!r})"]


def test_without_a_terminal_it_ends_by_itself() -> None:
    ran = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0
    assert URL in ran.stdout
    assert "Ctrl-C" not in ran.stdout


def test_at_a_terminal_it_stays_until_ctrl_c() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen(COMMAND, stdin=its, stdout=its) as process:
        os.close(its)
        said = b""
        while b"until Ctrl-C" not in said:
            said += os.read(ours, 1000)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 0
    os.close(ours)
    assert URL.encode() in said
