"""The examples in docstrings run, each as it stands, against a server."""

from __future__ import annotations

import contextlib
import inspect
import io
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from bench.servers import Server, headwater

import headwater as package
from headwater import client, errors, sql, state, testing
from headwater.server import asgi

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PUBLIC = (client, state, errors, asgi, testing, sql)
# Names that a module imports when they are used are only in its `__all__`.
NAMES = {
    (module, name): getattr(module, name)
    for module in PUBLIC
    for name in [*vars(module), *getattr(module, "__all__", ())]
    if not name.startswith("_")
}


def examples() -> dict[str, str]:
    blocks = {}
    for (_, name), thing in NAMES.items():
        ours = getattr(thing, "__module__", "").startswith("headwater")
        if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
            for block in BLOCK.findall(inspect.getdoc(thing) or ""):
                blocks[f"{thing.__module__}.{name}"] = block
    return blocks


EXAMPLES = examples()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with headwater("--memory") as server:
        yield server


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = EXAMPLES[name].replace("127.0.0.1:4437", f"{server.host}:{server.port}")
    text = re.sub(r'((?:stream|table)\(|pattern=|wake_stream=)"', rf'\1"{name}/', text)  # of its own
    text = re.sub(r'subscription\("', f'subscription("{name}-', text)
    scope = {"msgspec": msgspec, "Path": Path} | {name: thing for (_, name), thing in NAMES.items()}
    if "await " in text:
        text = f"import asyncio\nasync def main():\n{textwrap.indent(text, '    ')}\nasyncio.run(main())"
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, name, "exec"), scope)


def test_all_examples_are_of_public_names() -> None:
    """An example elsewhere would not be run."""
    count = 0
    for info in pkgutil.walk_packages(package.__path__, "headwater."):
        path = Path(package.__path__[0], *info.name.split(".")[1:]).with_suffix(".py")
        if path.exists():
            count += path.read_text().count("```python")
    assert count == len(EXAMPLES)
