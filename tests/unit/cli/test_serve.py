from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from headwater import __version__
from headwater.cli import app
from headwater.limits import Limits, parse_limits


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_version() -> None:
    assert run("--version") == (0, f"headwater {__version__}\n")


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = run("serve", "--memory", "--port", str(port))
    assert code == 1
    assert output == (
        f"headwater: cannot listen on 127.0.0.1:{port}: the port is in use. "
        "Stop the server that has it, or choose another with --port.\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "nobody.invalid"], "Give an address of this machine with --host."),
        (["--host", "192.0.2.1"], "it is not an address of this machine. Choose one with --host."),
    ],
)
def test_an_address_that_is_not_ours_is_one_line(options: list[str], says: str) -> None:
    code, output = run("serve", "--memory", "--port", "0", *options)
    assert code == 1
    assert says in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "longpoll=3"], "no limit is called 'longpoll'"),
        (["--limit", "long_poll_s=soon"], "long_poll_s is float"),
        (["--limit", "body_bytes_max=-1"], "more than 0"),
        (["--log-level", "loud"], "expected one of debug, info, warning, error, got 'loud'"),
        (["--follow", "prices"], "expected NAME=SURL"),
        (["--follow", "t=http://10.0.0.1/v1/table/t"], "only"),
        (["--allow-follow", "ftp://127.0.0.1/"], "scheme is ftp"),
        (["--trusted-proxy", "proxy.example"], "does not appear to be an IPv4 or IPv6 network"),
        (["--allow-origin", "app.example"], "an origin is like https://app.example"),
        (["--port", "99999"], "65535"),
        (["--nonsense"], "No such option"),
    ],
)
def test_a_typo_says_what_was_expected(arguments: list[str], says: str) -> None:
    code, output = run("serve", "--memory", *arguments)
    assert code == 2
    assert says in output
    assert output.endswith("See: headwater serve --help\n")
    assert output.count("\n") == 1


def test_limits_are_parsed_over_the_defaults() -> None:
    limits = parse_limits(["long_poll_s=2.5", "body_bytes_max=10"])
    assert (limits.long_poll_s, limits.body_bytes_max) == (2.5, 10)
    assert parse_limits([]) == Limits()
