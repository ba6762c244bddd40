"""The address of a Ray cluster, as people type it; without Ray."""

import socket

from autotune.errors import ClusterError
from autotune_policies.settings import closest

_ANSWER_TIMEOUT_S = 10.0
_HIGHEST_PORT = 65535
_WAY_OUT = "give --address HOST:PORT of the Ray head, auto or local"


def check_answers(address: str) -> None:
    """See whether anybody answers there, since Ray itself would wait for more than a minute.

    Raises:
        ClusterError: it is no HOST:PORT, or nobody answers.
    """
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=_ANSWER_TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(f"no Ray cluster answers at --address {address}: {reason}", hint=_WAY_OUT) from error


def _host_and_port(address: str) -> tuple[str, int]:
    if "/" in address:
        raise ClusterError(
            f"--address {address!r} is a URL, and HOST:PORT is needed",
            hint="the port of the Ray head itself, which is usually 6379; 8265 is its dashboard's",
        )
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon:
        hint = closest(address, ("auto", "local", "HOST:PORT of the Ray head"))
        raise ClusterError(f"--address {address!r} is neither HOST:PORT nor auto nor local", hint=hint)
    if not host:
        raise ClusterError(f"--address {address!r} names no host", hint=_WAY_OUT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _HIGHEST_PORT):
        raise ClusterError(
            f"--address {address!r}: the port {port!r} is no whole number from 1 to {_HIGHEST_PORT}", hint=_WAY_OUT
        )
    return host, int(port)
