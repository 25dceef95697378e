"""What can be checked of a configuration before a model is loaded or Java is started."""

from collections.abc import Callable

from farrank_server.config.schema import ListenConfig, ServerConfig
from farrank_server.engine.rankers.loading import check_rankers
from farrank_server.errors import ConfigError
from farrank_server.first_stage.lucene import check_indexes
from farrank_server.listen import check_port, check_tls


def check(config: ServerConfig) -> None:
    """Check the ports, the certificates, the indexes and every ranker's files, but not its weights.

    Raises: ConfigError with every problem.
    """
    problems: list[str] = []
    checks: tuple[Callable[[], object], ...] = (
        lambda: _check_ports(config.listen),
        lambda: config.listen.tls and check_tls(config.listen.tls),
        lambda: check_indexes(config.first_stage),
        lambda: check_rankers(config),
    )
    for each in checks:
        try:
            each()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _check_ports(listen: ListenConfig) -> None:
    check_port("listen.port", listen.host, listen.port)
    if listen.metrics_port is not None:
        check_port("listen.metrics_port", listen.host, listen.metrics_port)
