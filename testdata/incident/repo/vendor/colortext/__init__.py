"""Bold text for terminals."""

from . import _compat  # noqa: F401


def bold(s):
    return "\x1b[1m" + s + "\x1b[0m"
