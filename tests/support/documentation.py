"""The examples in the documentation and the stages of the Dockerfile, parsed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    def commands(self) -> list[list[str]]:
        """The words of each command line of a block of shell."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.split(line, comments=True) for line in lines if line.strip()]


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's base, and its instructions in order as (name, rest of the line)."""

    base: str
    instructions: tuple[tuple[str, str], ...]

    def lines(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The stages by name, in order."""

    stages: dict[str, Stage]

    @classmethod
    def read(cls) -> Dockerfile:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
        stages: dict[str, Stage] = {}
        name, base = "", ""
        found: list[tuple[str, str]] = []
        for line in [*filter(None, map(str.strip, text.splitlines())), "FROM end AS end"]:
            instruction, rest = line.split(maxsplit=1)
            if instruction == "FROM":
                if name:
                    stages[name] = Stage(base, tuple(found))
                base, _, name = rest.split()
                found = []
            else:
                found.append((instruction, rest))
        return cls(stages)

    def inherited(self, target: str, name: str) -> list[str]:
        """List the arguments of an instruction in a stage and in its bases, oldest first."""
        stage = self.stages[target]
        before = self.inherited(stage.base, name) if stage.base in self.stages else []
        return before + stage.lines(name)

    def environment(self, target: str) -> dict[str, str]:
        words = [word for line in self.inherited(target, "ENV") for word in shlex.split(line)]
        return dict(word.split("=", 1) for word in words)

    def requirements(self, **arguments: str) -> str:
        """Return the requirements.txt that the stage `requirements` writes with these build arguments."""
        stage = self.stages["requirements"]
        (line,) = stage.lines("RUN")
        defaults = dict(shlex.split(argument)[0].split("=", 1) for argument in stage.lines("ARG"))
        assert arguments.keys() <= defaults.keys()
        written, _, file = line.rpartition(" > ")
        assert file == "requirements.txt"
        return subprocess.run(
            ["sh", "-c", written],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **defaults, **arguments},
        ).stdout
