from __future__ import annotations

import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headwater import __version__
from headwater.limits import Limits, parse_limits
from tests.command_line import invoke


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A server in this process has the log written to standard error, for all tests after it too."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run(*arguments: str) -> tuple[int, str]:
    result = invoke(list(arguments))
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
        "Stop the server that uses it, or choose another port with --port.\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "nobody.invalid", ""])
def test_a_server_that_others_reach_does_not_start_without_access_control(host: str) -> None:
    code, output = run("serve", "--memory", "--port", "0", "--host", host)
    assert code == 2
    assert "--auth FILE" in output
    assert "--insecure" in output
    assert output.count("\n") == 1


def test_an_auth_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    code, output = run("serve", "--memory", "--port", "0", "--auth", str(file))
    assert (code, output.count("\n")) == (1, 1)
    assert str(file) in output
    file.touch(0o600)
    file.write_text("token = 1")
    file.chmod(0o600)
    code, output = run("serve", "--memory", "--port", "0", "--auth", str(file))
    assert (code, output.count("\n")) == (2, 1)
    assert "not a valid auth file" in output
    code, output = run("serve", "--memory", "--auth", str(file), "--insecure")
    assert code == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "nobody.invalid"], "Give an address of this machine with --host."),
        (["--host", "192.0.2.1"], "it is not an address of this machine. Choose one with --host."),
    ],
)
def test_an_address_that_is_not_ours_is_one_line(options: list[str], says: str) -> None:
    code, output = run("serve", "--memory", "--port", "0", "--insecure", *options)
    assert code == 1
    assert says in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "longpoll=3"], "no limit is called 'longpoll'"),
        (["--limit", "absurd=3"], "no limit is called 'absurd'; headwater serve --print-config lists them"),
        (["--limit", "long_poll_s"], "expected NAME=VALUE, got 'long_poll_s'"),
        (["--limit", "long_poll_s=soon"], "long_poll_s must be a number"),
        (["--limit", "body_bytes_max=-1"], "body_bytes_max must be from 1,024 to 1,073,741,824, got '-1'"),
        (["--trusted-proxy", "10.0.0.1/8"], "10.0.0.1/8 is not a network; give 10.0.0.0/8"),
        (["--log-level", "loud"], "expected one of debug, info, warning, error, got 'loud'"),
        (["--follow", "prices"], "expected NAME=SURL"),
        (["--follow", "t=http://10.0.0.1/v1/table/t"], "only"),
        (["--allow-follow", "ftp://127.0.0.1/"], "scheme is ftp"),
        (["--trusted-proxy", "proxy.example"], "expected an address or a network, as 127.0.0.1 or 10.0.0.0/8"),
        (["--allow-origin", "app.example"], "an origin is like https://app.example"),
        (["--port", "99999"], "65535"),
        (["--tls-key", "server.key"], "--tls-key: a TLS key needs a certificate"),
        (["--development", "--public-url", "https://streams.example"], "so it excludes public_url"),
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
    limits = parse_limits(["long_poll_s=2.5", "body_bytes_max=2048"])
    assert (limits.long_poll_s, limits.body_bytes_max) == (2.5, 2048)
    assert parse_limits([]) == Limits()


def test_a_certificate_that_is_missing_is_one_line(tmp_path: Path) -> None:
    code, output = run("serve", "--memory", "--port", "0", "--tls-certificate", str(tmp_path / "none.pem"))
    assert code == 1
    assert output == f"headwater: {tmp_path}/none.pem: No such file or directory. Check the path.\n"


@pytest.mark.parametrize("option", ["--auth", "--tls-certificate"])
@pytest.mark.parametrize("more", [[], ["--print-config"]])
def test_a_file_that_is_missing_is_said_before_anything_is_made(option: str, more: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    code, output = run("serve", "--data-dir", str(data), "--port", "0", option, str(tmp_path / "none"), *more)
    assert code == 1
    assert output.endswith(f"headwater: {tmp_path}/none: No such file or directory. Check the path.\n")
    assert not data.exists()


def test_the_directory_of_a_log_must_exist(tmp_path: Path) -> None:
    code, output = run("serve", "--memory", "--print-config", "--access-log", str(tmp_path / "none" / "access.log"))
    assert code == 2
    assert f"the access log {tmp_path}/none/access.log cannot be opened: its directory does not exist." in output


def test_what_is_effective_is_shown(tmp_path: Path) -> None:
    config = tmp_path / "headwater.toml"
    config.write_text("port = 5\n[limits]\nidle_s = 3\n")
    code, output = run("serve", "--config", str(config), "--memory", "--print-config")
    assert code == 0
    assert f"port = 5  # {config}: port\n" in output
    assert "memory = true  # --memory\n" in output
    assert f"idle_s = 3.0  # {config}: limits.idle_s\n" in output


def test_an_unknown_name_in_the_file_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "headwater.toml"
    config.write_text("prot = 5\n")
    code, output = run("serve", "--config", str(config))
    assert code == 2
    assert output == (f"headwater: {config}: there is no option prot; did you mean port? See: headwater serve --help\n")


@pytest.mark.parametrize(("options", "names"), [(["--memory"], "memory"), (["--data-dir", "{}"], "{}/kept")])
def test_the_start_line_names_the_data_directory(tmp_path: Path, options: list[str], names: str) -> None:
    arguments = [option.format(tmp_path / "kept") for option in options]
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert re.fullmatch(
        rf"headwater serving streams at http://127.0.0.1:\d+/v1/stream/ from {names.format(tmp_path)}\n", line
    )


@pytest.mark.usefixtures("default_signals")
def test_a_server_ends_with_its_terminal_and_reloads_otherwise() -> None:
    """SIGHUP comes from a terminal that is closed, and from an operator who wants files to be loaded again."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "headwater", "serve", "--memory", "--port", "0"])
    with open(terminal, "rb", buffering=0) as output:
        match = re.search(rb"serving streams at (http://[0-9.:]+)/", output.read(200))
        assert match is not None
        os.kill(pid, signal.SIGHUP)
        assert httpx.get(f"{match[1].decode()}/readyz").status_code == 200  # a server that ends answers 503, or not
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_limit_that_is_off_by_default_can_be_turned_off() -> None:
    assert parse_limits(["streams_max=3", "streams_max=0"]).streams_max == 0
    for setting in ("streams_max=-1", "body_bytes_max=0", "long_poll_s=0", "long_poll_s=inf", "long_poll_s=nan"):
        with pytest.raises(ValueError, match=r"must be .*from"):
            parse_limits([setting])
