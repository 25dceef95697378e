"""`farrank completion`: a script with which the shell completes commands, flags and their choices."""

import argparse
import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

from farrank_cli.exit_codes import DONE
from farrank_cli.flags import add_commands

_SCRIPT = """\
# bash: source <(farrank completion bash)
# zsh:  autoload -U compinit bashcompinit && compinit && bashcompinit, then the same line
_farrank() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" path="" word
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
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
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the script. Flags of a command whose extra is not installed are left out."""
    from farrank_cli.main import COMMANDS, load

    farrank = argparse.ArgumentParser(add_help=False)
    for name, parser in add_commands(farrank, dict.fromkeys(COMMANDS, "")).items():
        with contextlib.suppress(ModuleNotFoundError):
            load(name).configure(parser)
    words: dict[str, list[str]] = {}
    choices: dict[str, list[str]] = {}
    for path, parser in _parsers("", farrank):
        words[path] = []
        for action in parser._actions:
            flags = [flag for flag in action.option_strings if flag.startswith("--")]
            values = list(map(str, action.choices or ()))
            words[path] += flags or values
            if action.nargs != 0:  # without choices the value is left to the shell, which completes files
                choices |= {f"{path} {flag}": values for flag in flags}
    paths = "|".join(filter(None, words))
    print(_SCRIPT.format(paths=paths, choices=_cases(choices), words=_cases(words)), end="")
    return DONE


def _parsers(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _parsers(f"{path}/{name}", below)


def _cases(words: Mapping[str, Sequence[str]]) -> str:
    """Write the completions for each path, or path and flag."""
    offer = '{}) COMPREPLY=($(compgen -W {} -- "$current")); return ;;'
    lines = (offer.format(shlex.quote(key), shlex.quote(" ".join(values))) for key, values in words.items())
    return "\n".join(f"        {line}" for line in lines)
