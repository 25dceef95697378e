"""What to say where a package of an extra is missing."""

from farrank_cli.exit_codes import CommandError


def missing_extra(command: str, extra: str | None, error: ModuleNotFoundError) -> Exception:
    """Turn the error into the extra to install; it stays what it is if no extra would bring the module."""
    if extra is None or error.name is None or error.name.startswith("farrank"):
        return error
    return CommandError(
        f"farrank {command} needs the {extra} extra: "
        f"pip install 'farrank[{extra}]' (no module {error.name!r})"
    )
