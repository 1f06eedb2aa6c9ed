"""How a job connects to the server: the options of jobs as options of the formats."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import msgspec

from headwater.errors import OptionError
from headwater.pipeline.options import JobOptions
from headwater.spark.connection import ConnectionOptions
from headwater.spark.options import write_options
from headwater.spark.tokens import current_token

_FORMAT_NAMES = {
    field.name: field.encode_name
    for field in msgspec.structs.fields(ConnectionOptions)
    if field.name in JobOptions.__struct_fields__
}
_OWN_NAMES = {name: own for own, name in _FORMAT_NAMES.items() if own != name}
_FILES = ("token_file", "ca_file", "client_certificate", "client_key")


def format_options(options: JobOptions) -> dict[str, str]:
    """The options of the formats for the server of a job."""
    texts = {}
    for name, format_name in _FORMAT_NAMES.items():
        value = getattr(options, name)
        if isinstance(value, Mapping):
            value = json.dumps(dict(value)) if value else None
        if value is not None:
            texts[format_name] = os.path.abspath(value) if name in _FILES else str(value)
    return texts


def check_server(options: JobOptions) -> ConnectionOptions:
    """The connection to a server, whose files have been read. OptionError if an option or a file cannot be used."""
    texts = format_options(options)
    try:
        connection = write_options(texts, state=False)
        connection.tls()
        current_token(connection.token_file, connection.token_function)
    except OptionError as error:
        raise OptionError(_in_own_names(str(error))) from None
    return connection


def _in_own_names(message: str) -> str:
    return re.sub("|".join(_OWN_NAMES), lambda match: _OWN_NAMES[match[0]], message)
