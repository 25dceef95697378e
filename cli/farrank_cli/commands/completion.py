"""`farrank completion`: a script that has the shell complete commands, flags and their choices."""

import argparse
import contextlib
import shlex
from collections.abc import Iterator

from farrank_cli.exit_codes import DONE

_SCRIPT = """\
# bash: source <(farrank completion bash)
# zsh:  autoload -U compinit bashcompinit && compinit && bashcompinit, then the same line
_farrank() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" path="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
        case "$path/$word" in {paths}) path="$path/$word" ;; esac
    done
    case "$path $previous" in
{choices}
    esac
    case "$path" in
{words}
    esac
}}
complete -o default -F _farrank farrank
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the shell's name."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script. Flags of a command whose extra is not installed are left out."""
    from farrank_cli.main import COMMANDS

    paths: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        paths[f"/{name}"] = parser = argparse.ArgumentParser()
        with contextlib.suppress(ModuleNotFoundError):
            command.load().configure(parser)
        paths |= {f"/{name}/{each}": below for each, below in _subcommands(parser)}
    words = {"": " ".join(COMMANDS)} | {path: _words(parser) for path, parser in paths.items()}
    choices = {
        f"{path} {flag}": " ".join(map(str, action.choices))
        for path, parser in paths.items()
        for action in parser._actions
        if action.choices and action.option_strings
        for flag in action.option_strings
    }
    print(_SCRIPT.format(paths="|".join(paths), choices=_cases(choices), words=_cases(words)), end="")
    return DONE


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _words(parser: argparse.ArgumentParser) -> str:
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    return " ".join([*(name for name, _ in _subcommands(parser)), *flags])


def _cases(words: dict[str, str]) -> str:
    offer = 'COMPREPLY=($(compgen -W {} -- "$current")); return ;;'
    return "\n".join(
        f"        {shlex.quote(key)}) {offer.format(shlex.quote(value))}" for key, value in words.items()
    )
