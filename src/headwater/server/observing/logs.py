"""How log records are written: a line for people, or a JSON document for programs.

Records hold what others sent, such as paths and URLs. Control characters are escaped, and the lines of a traceback are
indented, so that nothing in a record can pass for another one.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

HUMAN, JSON = "human", "json"
FORMATS = (HUMAN, JSON)

# These write headers of requests to their debug log, credentials too.
_TALKATIVE = ("httpcore", "httpx")


def escaped(text: str) -> str:
    """Text in printable ASCII: everything else, and the backslash, is escaped as in a string of Python."""
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
    """Writes to whatever standard error is at the moment."""

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
    """The text with its control characters escaped. Letters of all languages are left as they are."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else escaped(char) for char in text])


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
