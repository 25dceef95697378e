"""Check the pinned packages against an index of known vulnerabilities: `make audit`.

pip-audit asks OSV (https://osv.dev), or a service with the same protocol at FARRANK_ADVISORIES. If the index
cannot be reached, the script says so in one line and succeeds: a machine without a network must be able to
run the other checks. An empty index would pass every package, so the first question is about a package that
is known to be vulnerable.
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

# This release will always have advisories (CVE-2014-1402).
KNOWN_TO_BE_VULNERABLE = "jinja2==2.4.1"

TIMEOUT_S = 10


class NoIndex(Exception):
    """No index of advisories can be reached; the message says why."""


def audit(pins: list[str], index: str) -> list[dict[str, Any]]:
    """Return pip-audit's entry for each package, with its advisories. Raises: NoIndex."""
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
    """Print a line for each vulnerability. Returns 1 if there is one, otherwise 0."""
    index = os.environ.get("FARRANK_ADVISORIES", OSV)
    pins = {
        line.strip()
        for file in FILES
        for line in Path(file).read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    # A requirements file may not name a package twice, so a package with two pins is audited in two rounds.
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
                f"{index} has no advisory for {KNOWN_TO_BE_VULNERABLE}, which is known to be vulnerable"
            )
        found = [each for pinned in rounds for each in audit(list(pinned.values()), index)]
    except NoIndex as error:
        print(f"audit: nothing was audited, because no index of advisories can be reached: {error}")
        return 0
    skipped = [each["name"] for each in found if "skip_reason" in each]
    if skipped:
        print(f"audit: {len(skipped)} packages could not be audited: {', '.join(skipped[:10])}")
    vulnerable = [(each, advisory) for each in found for advisory in each.get("vulns", ())]
    for each, advisory in vulnerable:
        fixed_in = ", ".join(advisory["fix_versions"]) or "no release"
        print(f"audit: {each['name']} {each['version']}: {advisory['id']}, fixed in {fixed_in}")
    if not vulnerable:
        print(f"audit: none of {len(found) - len(skipped)} packages has a known vulnerability")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
