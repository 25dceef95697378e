"""A deadline that the server alone sees: a client's own may pass before the server has answered."""


def server_deadline(timeout_s: float) -> tuple[str, str]:
    """The header with which gRPC tells a server of a deadline, as metadata of a call without a timeout."""
    return ("grpc-timeout", f"{round(timeout_s * 1000)}m")
