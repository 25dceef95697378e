"""A deadline that only the server knows: a client's own may pass before the server answers."""


def server_deadline(timeout_s: float) -> tuple[str, str]:
    """Return the header with a deadline for the server, as metadata of a call without a timeout."""
    return ("grpc-timeout", f"{round(timeout_s * 1000)}m")
