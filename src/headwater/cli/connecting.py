"""The options of every command that uses a server, and the client for them.

A command has a parameter `server: Server`, which `with_server` replaces by the options. The client is imported where it
is used, because the import takes 0.1 s and `headwater serve` does not need it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec
import typer

from headwater import limits
from headwater.cli.failing import described, is_hopeless
from headwater.cli.output import say, shown
from headwater.errors import HeadwaterError
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.protocol.tables.paths import TABLE_ROOT

if TYPE_CHECKING:
    from headwater.client import Client, Report


DEFAULT_URL = "http://127.0.0.1:4437"
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~]*?)[ \t]*")
_TOKEN = re.compile(r"[!-~]+")
_AUTHORIZATION = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ +[!-~][ -~]*")

Url: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HEADWATER_URL",
        help="URL of the server, of the path where it is mounted, or of the root of its streams.",
    ),
]
Token: TypeAlias = Annotated[
    str | None, typer.Option("--token", envvar="HEADWATER_TOKEN", help="Sent as a bearer token.", show_default=False)
]
Auth: TypeAlias = Annotated[
    str | None,
    typer.Option("--auth", metavar="'SCHEME CREDENTIALS'", help="Sent as Authorization.", show_default=False),
]
Header: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="'NAME: VALUE'", help="Sent with every request. Repeatable.", show_default=False),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Server(msgspec.Struct, frozen=True):
    """A server given on the command line, and the credentials for it."""

    url: str  # the root of its streams
    headers: dict[str, str] = {}  # from the command line
    token: str | None = None  # from the environment: for this server only

    def of(self, name: str) -> Server:
        """The server of a stream or table. A full URL can name another server."""
        if not name.startswith(("http://", "https://")):
            return self
        url = _root_above(name)
        return Server(url, self.headers, self.token if _origin(url) == _origin(self.url) else None)

    def all_headers(self) -> dict[str, str]:
        names = {name.lower() for name in self.headers}
        if self.token is None or "authorization" in names or urlsplit(self.url).username is not None:
            return self.headers
        return {**self.headers, "authorization": f"Bearer {self.token}"}


def root_of(url: str) -> str:
    """The root of streams for `--url`, which may be a server, a path where Headwater is mounted, or the root itself.

    The client uses any path as the root. On the command line, `http://host/app` is a path where Headwater is mounted.
    """
    if not re.match("https?://", url, re.IGNORECASE):
        named = (url.partition("://")[2] or url).rpartition("@")[2]  # without a password
        example = f"http://{named}" if named else DEFAULT_URL
        raise ValueError(f"the URL of a server begins with http:// or https://, for example {example}")
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"the URL of a server names a host, for example {DEFAULT_URL}; got {url}")
    path = f"{parts.path.rstrip('/')}/"
    if STREAM_ROOT in path:
        return url
    return urlunsplit(parts._replace(path=path.partition(TABLE_ROOT)[0].rstrip("/") + STREAM_ROOT))


def _root_above(url: str) -> str:
    """The root of streams of the server in the URL of a stream or table."""
    parts = urlsplit(url)
    match = re.match(f"(.*?)({STREAM_ROOT}|{TABLE_ROOT})", parts.path)
    path = (match[1] if match else "") + STREAM_ROOT
    return urlunsplit(parts._replace(path=path, query="", fragment=""))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def server_named(
    url: str, token: str | None, auth: str | None, header: Sequence[str] | None, *, is_token_given: bool = True
) -> Server:
    """The server from the options. Credentials on the command line override a token from the environment."""
    headers = dict(_parsed_header(text) for text in header or ())
    named = {name.lower() for name in headers}
    if len(named) < len(header or ()):
        raise typer.BadParameter("a header is given twice", param_hint="--header")
    if token is not None and not _TOKEN.fullmatch(token):
        where = "--token" if is_token_given else "HEADWATER_TOKEN"
        what = "printable ASCII without spaces" if token.strip() else "a token, but it is empty"
        raise typer.BadParameter(f"expected {what}", param_hint=where)
    own = token if is_token_given else None
    if (own is not None) + (auth is not None) + ("authorization" in named) > 1:
        raise typer.BadParameter("give one of --token, --auth and an Authorization header", param_hint="--auth")
    if auth is not None and not _AUTHORIZATION.fullmatch(auth):
        raise typer.BadParameter("expected a scheme and credentials, such as 'Basic dXNlcjpwYXNz'", param_hint="--auth")
    if auth is not None or own is not None:
        headers["authorization"] = auth or f"Bearer {own}"
    try:
        return Server(root_of(url), headers, None if is_token_given else token)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None


def _parsed_header(text: str) -> tuple[str, str]:
    """Parse a header from the command line. Errors do not show its value, which may be a secret."""
    if match := _HEADER.fullmatch(text):
        return match[1], match[2]
    name = text.partition(":")[0] if ":" in text else "one without a colon"
    raise typer.BadParameter(f"expected 'Name: value' in printable ASCII, got {name[:80]}", param_hint="--header")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, not by the environment or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


_OPTIONS = {"url": (Url, DEFAULT_URL), "token": (Token, None), "auth": (Auth, None), "header": (Header, None)}


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `server` of a command, if it has one, by the options that name a server."""
    own = inspect.signature(command, eval_str=True)
    if "server" not in own.parameters:
        return command

    def wrapped(context: typer.Context, **arguments: Any) -> None:
        url, token, auth, header = (arguments.pop(name) for name in _OPTIONS)
        server = server_named(url, token, auth, header, is_token_given=is_given(context, "token"))
        command(**arguments, server=server)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    parameters += [parameter.replace(kind=keyword) for name, parameter in own.parameters.items() if name != "server"]
    for option, (annotation, default) in _OPTIONS.items():
        parameters.insert(
            -1, inspect.Parameter(option, keyword, default=default, annotation=annotation)
        )  # before --json
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {}
    wrapped.__doc__ = command.__doc__
    return wrapped


def complete_path(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the path of a stream for the shell."""
    size = limits.CLI_COMPLETE_PATHS_MAX
    return _completed(context, lambda client: (info.path for info in client.list(incomplete, page_size=size)))


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a table for the shell."""
    size = limits.CLI_COMPLETE_PATHS_MAX
    return _completed(context, lambda client: (info.name for info in client.tables(incomplete, page_size=size)))


def complete_subscription(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a subscription for the shell."""
    size = limits.CLI_COMPLETE_PATHS_MAX
    return _completed(context, lambda client: (info.id for info in client.subscriptions(incomplete, page_size=size)))


def _completed(context: typer.Context, names_of: Callable[[Client], Iterator[str]]) -> list[str]:
    """Names that are safe to print; none if the server does not respond quickly."""
    try:
        with _quick_client(context) as client:
            names = list(itertools.islice(names_of(client), limits.CLI_COMPLETE_PATHS_MAX))
    except (HeadwaterError, ValueError, typer.BadParameter):
        return []
    return [name for name in names if name == shown(name)]


def _quick_client(context: typer.Context) -> Client:
    """A client for shell completion, which gives up after a second."""
    from headwater.client import Client, Retry, Timeouts

    url, *rest = (context.params.get(name) for name in _OPTIONS)
    server = server_named(url or DEFAULT_URL, *rest, is_token_given=False)
    quick = Timeouts(connect_s=limits.CLI_COMPLETE_CONNECT_S, answer_s=limits.CLI_COMPLETE_ANSWER_S)
    return Client(server.url, headers=server.all_headers(), retry=Retry(attempts=1), timeouts=quick)


Path: TypeAlias = Annotated[
    str, typer.Argument(help="The stream's path, or its whole URL.", autocompletion=complete_path)
]
Name: TypeAlias = Annotated[str, typer.Argument(help="The table's name, or its SURL.", autocompletion=complete_name)]
SubscriptionId: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The subscription's id.", autocompletion=complete_subscription)
]


def _report_retry(report: Report) -> None:
    say(retrying(report), err=True)


def retrying(report: Report) -> str:
    what, _ = described(report.error)
    return f"headwater: {what}; trying again in {report.delay_s:.1f} s"


@contextlib.contextmanager
def connected(server: Server, name: str = "", on_error: Callable[[Report], None] = _report_retry) -> Iterator[Client]:
    """A client of the server, or of the server in the full URL of a stream or table.

    Retries are reported, by default on standard error. A server that does not run or does not exist is tried only
    once, unless it has responded before.
    """
    import httpx

    from headwater.client import Client
    from headwater.client.transport import POOL, tls_context

    has_answered = False

    def answered(_: httpx.Response) -> None:
        nonlocal has_answered
        has_answered = True

    def report(failure: Report) -> None:
        if not has_answered and is_hopeless(failure.error):
            raise failure.error
        on_error(failure)

    server = server.of(name)
    with httpx.Client(limits=POOL, verify=tls_context(), event_hooks={"response": [answered]}) as http:
        try:
            client = Client(server.url, headers=server.all_headers(), on_error=report, http=http)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--url") from None
        with client:
            yield client


def is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
