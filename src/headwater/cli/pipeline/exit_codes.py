"""The exit codes of pipeline commands, which tell a scheduler whether to try again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer

from headwater import errors, limits
from headwater.cli.failing import INTERRUPTED, described, fail

DONE = 0
RETRY = 1
WRONG_OPTIONS = 2
NEEDS_A_PERSON = 3

_CALLING = "An error occurred while calling"  # begins every Py4JJavaError


def exit_code(error: BaseException) -> int:
    """The exit code of an error: non-retryable errors need a person, and unexpected ones may be tried again."""
    if isinstance(error, errors.OptionError):
        return WRONG_OPTIONS
    if not isinstance(error, errors.HeadwaterError) or error.retryable or error.outcome_unknown:
        return RETRY
    return NEEDS_A_PERSON


@contextlib.contextmanager
def exits(options: str = "See: docs/pipeline.md") -> Iterator[None]:
    """Report errors as one line, and exit with the code that tells a scheduler what to do.

    `options` is the advice for an invalid option.
    """
    try:
        yield
    except typer.Exit:
        raise
    except ImportError as error:
        way_out = "Install it with: pip install '.[spark]' in a checkout of Headwater"
        fail(f"the pipeline needs Spark ({error})", way_out, code=WRONG_OPTIONS)
    except ConnectionError:  # connection errors to a server are HeadwaterErrors, so this one is of Spark's Java process
        fail("Spark's Java process has ended", "It can be tried again.", code=RETRY)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        fail(message, "Check the path and the disk.", code=RETRY)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001  # of Spark, Java and delta-rs too
        _fail(error, options)


def _fail(error: Exception, options: str) -> NoReturn:
    cause = error
    if not isinstance(error, errors.HeadwaterError):
        from headwater.pipeline.running import cause_of

        cause = cause_of(error)
    if not isinstance(cause, errors.HeadwaterError):
        fail(_brief(cause), "It can be tried again.", code=RETRY)
    if isinstance(cause, errors.OptionError):
        fail(str(cause), options, code=WRONG_OPTIONS)
    explanation = described(cause) if cause.url else (str(cause), cause.advice)
    fail(*explanation, code=exit_code(cause))


def _brief(error: Exception) -> str:
    """One line of a message that can be pages long: the error of a Python worker, or the last cause, or the first line
    that does not only name a call."""
    from headwater.pipeline.running import raised_in_worker

    text = str(error)
    if (raised := raised_in_worker(text)) is not None:
        return f"a task of Spark failed: {raised[: limits.JOB_ERROR_LENGTH_MAX]}"
    lines = [line.strip(" :") for line in text.splitlines() if line.strip(" :")]
    if lines and lines[0].startswith(_CALLING):
        lines = lines[1:] or lines
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    lines = causes[-1:] or lines
    return f"{type(error).__name__}: {lines[0][: limits.JOB_ERROR_LENGTH_MAX]}" if lines else type(error).__name__
