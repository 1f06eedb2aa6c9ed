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
    assert f"cannot listen on 127.0.0.1:{port}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "longpoll=3"], "no limit is called 'longpoll'"),
        (["--limit", "long_poll_s=soon"], "long_poll_s is float"),
        (["--limit", "body_bytes_max=-1"], "more than 0"),
        (["--log-level", "loud"], "unknown level"),
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
    assert says in " ".join(output.replace("│", " ").split())


def test_limits_are_parsed_over_the_defaults() -> None:
    limits = parse_limits(["long_poll_s=2.5", "body_bytes_max=10"])
    assert (limits.long_poll_s, limits.body_bytes_max) == (2.5, 10)
    assert parse_limits([]) == Limits()
