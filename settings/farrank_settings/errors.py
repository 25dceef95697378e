"""The error of a wrong configuration."""


class ConfigError(ValueError):
    """The configuration is wrong and stops the start.

    Each problem names the key, the value and the allowed values.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
