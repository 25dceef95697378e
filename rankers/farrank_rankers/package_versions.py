"""Versions of installed packages."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def package_version(package: str) -> str | None:
    """Give a package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Give the versions of those packages that are installed."""
    found = {package: package_version(package) for package in packages}
    return {package: release for package, release in found.items() if release is not None}
