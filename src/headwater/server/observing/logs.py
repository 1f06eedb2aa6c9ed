"""Formats log records as text for people, or as JSON for programs.

Records contain data of clients, such as paths and URLs. Control characters are escaped and the lines of a traceback are
indented, so that a client cannot forge a record.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

HUMAN, JSON = "human", "json"

# Their debug logs contain request headers with credentials.
_TALKATIVE = ("httpcore", "httpx")


def escaped(text: str) -> str:
    """Text in printable ASCII; other characters and the backslash are escaped as in Python strings."""
    return text.encode("unicode_escape").decode("ascii")


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{_instant(record)} {record.levelname} {record.name}: {_printable(record.getMessage())}"]
        lines += [f"    {_printable(line)}" for line in _trace(self, record).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        described = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(self, record):
            described["exception"] = trace
        return json.dumps(described).replace("\x7f", "\\u007f")


class _Stderr(logging.Handler):
    """Writes to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # the reader has closed it
            return


def configure(level: int, log_format: str = HUMAN) -> None:
    """Write log records to standard error."""
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if log_format == JSON else HumanFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _printable(text: str) -> str:
    """The text with control characters escaped. Letters of all languages are kept."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else escaped(char) for char in text])


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
