"""How a job connects to the server besides its URL and a token, in the names of arguments and flags."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TypedDict

from headwater.errors import OptionError
from headwater.spark.connection import ConnectionOptions
from headwater.spark.options import write_options
from headwater.spark.tokens import current_token


class Connecting(TypedDict, total=False):
    """Arguments of every job: options of connections in [Spark](../spark.md#connections), in snake case.

    Paths are made absolute. On a cluster the files must be at the same paths on every machine.
    """

    token_file: str | None
    token_function: str | None
    headers: Mapping[str, str] | None
    ca_file: str | None
    client_certificate: str | None
    client_key: str | None


_FORMAT_NAMES = {
    "token_file": "tokenFile",
    "token_function": "tokenFunction",
    "headers": "headers",
    "ca_file": "caFile",
    "client_certificate": "clientCertificate",
    "client_key": "clientKey",
}
_OWN_NAMES = {name: own for own, name in _FORMAT_NAMES.items()}
_FILES = ("token_file", "ca_file", "client_certificate", "client_key")


def format_options(url: str, token: str | None, connecting: Connecting) -> dict[str, str]:
    """The options of the formats for a server."""
    options = {"url": url, **({} if token is None else {"token": token})}
    for name, value in connecting.items():
        if name not in _FORMAT_NAMES:
            raise TypeError(f"jobs have no argument {name!r}")
        if name == "headers" and isinstance(value, Mapping):
            value = json.dumps(dict(value)) if value else None
        if value is not None:
            options[_FORMAT_NAMES[name]] = os.path.abspath(str(value)) if name in _FILES else str(value)
    return options


def check_connection(url: str, token: str | None, connecting: Connecting) -> ConnectionOptions:
    """The connection to a server, whose files have been read. OptionError if an option or a file cannot be used."""
    options = format_options(url, token, connecting)
    try:
        connection = write_options(options, state=False).connection
        connection.tls()
        current_token(connection.token_file, connection.token_function)
    except OptionError as error:
        raise OptionError(_in_own_names(str(error))) from None
    return connection


def _in_own_names(message: str) -> str:
    return re.sub("|".join(_OWN_NAMES), lambda match: _OWN_NAMES[match[0]], message)
