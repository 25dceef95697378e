"""Hold the pinned packages against an index of known vulnerabilities: `make audit`.

pip-audit asks OSV (https://osv.dev), or what speaks its protocol at FARRANK_ADVISORIES. Where that cannot be
had, one line says so, and nothing fails: a machine without a network must be able to check the rest. An index
that knows nothing would pass everything, so one question comes first whose answer is known.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FILES = ("constraints.txt", "constraints-transformers-4.txt")
OSV = "https://api.osv.dev/v1/query"

# It has advisories, and always will (CVE-2014-1402).
KNOWN_TO_BE_VULNERABLE = "jinja2==2.4.1"

TIMEOUT_S = 10


class NoIndex(Exception):
    """There is no index of advisories to be asked; the message says why."""


def audit(pins: list[str], index: str) -> list[dict[str, Any]]:
    """Ask for the advisories of packages. Raises: NoIndex."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "pins.txt")
        file.write_text("\n".join(pins) + "\n")
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--requirement",
            str(file),
            "--no-deps",
            "--disable-pip",
        ]
        command += ["--vulnerability-service=osv", f"--osv-url={index}", f"--timeout={TIMEOUT_S}"]
        command += ["--format=json", "--progress-spinner=off"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"]
        raise NoIndex(lines[-1][:200]) from None
    return found


def main() -> int:
    """Say what is vulnerable, a line each; 1 if anything is."""
    index = os.environ.get("FARRANK_ADVISORIES", OSV)
    pins = {
        line.strip()
        for file in FILES
        for line in Path(file).read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    # A file may not name a package twice: what both releases of transformers have comes first.
    rounds: list[dict[str, str]] = []
    for pin in sorted(pins):
        name = pin.partition("==")[0].lower()
        free = next((each for each in rounds if name not in each), None)
        if free is None:
            rounds.append({name: pin})
        else:
            free[name] = pin
    try:
        (canary,) = audit([KNOWN_TO_BE_VULNERABLE], index)
        if not canary.get("vulns"):
            raise NoIndex(
                f"{index} knows nothing of {KNOWN_TO_BE_VULNERABLE}, which is known to be vulnerable"
            )
        found = [each for pinned in rounds for each in audit(list(pinned.values()), index)]
    except NoIndex as error:
        print(f"audit: nothing was audited, no index of advisories can be had: {error}")
        return 0
    skipped = [each["name"] for each in found if "skip_reason" in each]
    if skipped:
        print(f"audit: {len(skipped)} packages could not be audited: {', '.join(skipped[:10])}")
    vulnerable = [(each, advisory) for each in found for advisory in each.get("vulns", ())]
    for each, advisory in vulnerable:
        helps = ", ".join(advisory["fix_versions"]) or "no release"
        print(f"audit: {each['name']} {each['version']}: {advisory['id']}, mended in {helps}")
    if not vulnerable:
        print(f"audit: of {len(found) - len(skipped)} packages none has a known vulnerability")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
