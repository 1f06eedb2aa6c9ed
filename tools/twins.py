"""Generate the blocking shells from the asyncio ones: `python -m tools.twins`. With `--check`, only compare them.

The logic is in flows, which both use. The shells are the same code with and without `await`. Transports, producers
and background work use threads and locks in one and tasks in the other, and are written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headwater"
CLIENT = ("client", "follow", "reader", "stream", "subscription", "table", "table_reader", "webhooks", "worker")
MODULES = [
    *(SOURCE / "client" / "aio" / f"{name}.py" for name in CLIENT),
    SOURCE / "state" / "aio" / "streamdb.py",
]

FIXES = "I,UP028,C416"  # import order, and loops and lists that can be shorter without await
WORDS = (
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\(await ([\w.]+\(\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter)__", r"__\1__"),
    (r"\banext\(", "next("),
    (r"\baclosing\b", "closing"),
    (r"\baclose\(", "close("),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b(client|state)\.aio\.", r"\1.sync."),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"Callable\[\.\.\., Awaitable\[None\]\]", "Callable[..., None]"),
    (r"str \| Awaitable\[str\]", "str"),
    (r"Awaitable\[None\] \| None", "None"),
    (r", Awaitable\b", ""),
    # Words about tasks and event loops.
    (r"(?m)^(\"\"\".*), asyncio\.\"\"\"$", r'\1, blocking."""'),
    (r"server, for one event loop\. Close", "server. It can be shared between threads. Close"),
    (r" All of these functions may be coroutine\n    functions\.", ""),
    (r"another task waits", "another thread waits"),
    (r"\bimport asyncio\b", "import threading"),
    (r"\basyncio\.Lock\b", "threading.Lock"),
    (r"suppress\(RuntimeError\)(?=:  # it is running)", "suppress(ValueError)"),
)


def twin_of(path: Path) -> Path:
    return path.parents[1] / "sync" / path.name


def blocking(path: Path) -> str:
    """The text of the blocking twin of a module."""
    text = path.read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    text = f"# Made by `python -m tools.twins` from aio/{path.name}: change that one.\n{text}"
    for command in (["check", "--fix-only", "--quiet", "--unsafe-fixes", "--select", FIXES], ["format", "--quiet"]):
        text = _ruff(command, text, twin_of(path))
    return text


def _ruff(command: list[str], text: str, path: Path) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> None:
    stale = []
    for module in MODULES:
        path, made = twin_of(module), blocking(module)
        if made != path.read_text():
            stale.append(str(path.relative_to(SOURCE)))
            if "--check" not in sys.argv:
                path.write_text(made)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python -m tools.twins")


if __name__ == "__main__":
    main()
