"""Bearer tokens from files and functions, which change while a query runs.

A process caches the last token of each file and function. A file is read again when it has changed; a function is
called again when the server has refused its last token.
"""

from __future__ import annotations

import importlib
import operator
import os
import threading
from pathlib import Path

from headwater.errors import OptionError

_known: dict[str, tuple[object, str]] = {}  # by file or function, the version and the token
_lock = threading.Lock()


def current_token(file: str | None, function: str | None) -> str | None:
    """The current token; None if there is neither a file nor a function."""
    with _lock:
        if file is not None:
            version = _version(file)
            if _known.get(file, (None, ""))[0] != version:
                _known[file] = (version, _read(file))
            return _known[file][1]
        if function is None:
            return None
        if function not in _known:
            _known[function] = (None, _called(function))
        return _known[function][1]


def new_token(file: str | None, function: str | None) -> str | None:
    """The current token, without the cached one, which the server has refused."""
    with _lock:
        _known.pop(file or function or "", None)
    return current_token(file, function)


def is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _version(file: str) -> tuple[int, int, int]:
    try:
        status = os.stat(file)
    except OSError as error:
        raise OptionError(f"tokenFile {file} cannot be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read(file: str) -> str:
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"tokenFile {file} cannot be read: {type(error).__name__}") from None
    if not token or not is_header_value(token):
        raise OptionError(f"tokenFile {file} must contain one token of printable ASCII")
    return token


def _called(function: str) -> str:
    module, _, name = function.partition(":")
    try:
        provider = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise OptionError(f"tokenFunction {function} cannot be imported here: {error}") from None
    token = provider()
    if not isinstance(token, str) or not token or not is_header_value(token):
        raise OptionError(f"tokenFunction {function} must return a token of printable ASCII")
    return token
