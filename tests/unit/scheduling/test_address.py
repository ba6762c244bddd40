"""An address that is none, or where nobody is, is told in one line."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ClusterError
from autotune.scheduling.address import check_answers


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        ("nonsense", "--address 'nonsense' is neither HOST:PORT nor auto nor local", "auto, local, HOST:PORT"),
        ("lcoal", "--address 'lcoal' is neither HOST:PORT nor auto nor local", "did you mean local?"),
        ("", "--address '' is neither", "legal: auto"),
        (":6379", "--address ':6379' names no host", "HOST:PORT"),
        ("::::", "--address '::::': the port '' is no whole number from 1 to 65535", "HOST:PORT"),
        ("head:port", "--address 'head:port': the port 'port' is no whole number from 1 to 65535", "HOST:PORT"),
        ("head:0", "--address 'head:0': the port '0' is no whole number", "HOST:PORT"),
        ("[::1]:99999", "--address '[::1]:99999': the port '99999' is no whole number", "HOST:PORT"),
        ("head:-1", "--address 'head:-1': the port '-1' is no whole number", "HOST:PORT"),
        ("http://head:8265", "--address 'http://head:8265' is a URL, and HOST:PORT is needed", "6379"),
    ],
)
def test_what_is_no_address_is_told_without_asking_anybody(
    monkeypatch: pytest.MonkeyPatch, address: str, message: str, hint: str
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("somebody was asked"))
    with pytest.raises(ClusterError) as error:
        check_answers(address)
    assert error.value.message.startswith(message)
    assert hint in str(error.value.hint)


def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"no Ray cluster answers at --address {address}: Connection refused"):
            check_answers(address)
        taken.listen()
        check_answers(address)


@given(st.text(max_size=20))
def test_whatever_is_typed_is_told_in_one_line(address: str) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise OSError("nobody")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", nobody)
        with pytest.raises(ClusterError) as error:
            check_answers(address)
    assert len(error.value.message.splitlines()) == 1
    assert error.value.hint
