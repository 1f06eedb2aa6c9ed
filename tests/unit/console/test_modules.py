"""The parts of the console that compute: JSON as it was written, differences, metrics, and the tree of paths. Node runs
them; the rest needs a browser (`tests/browser/test_console.py`)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater.console
from headwater.state import is_change_event, is_control_event
from tests.programs import needed

DIRECTORY = Path(headwater.console.__file__).parent
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason=needed("node"))
pytestmark = needs_node


def run(script: str, argument: object = None) -> Any:
    """What a function of `given` returns, as JSON. Modules are those of the console."""
    assert NODE is not None
    imports = "".join(
        f'import * as {name} from "{(DIRECTORY / f"{name}.js").as_uri()}";\n' for name in ("json", "metrics", "format")
    )
    source = f"{imports}console.log(JSON.stringify(({script})(JSON.parse(process.argv[1]))));"
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", source, json.dumps(argument)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_numbers_keep_their_digits() -> None:
    texts = ["12345678901234567890", "-0.0", "1e400", "0.1000", '"\\u00e9\\n"', "[]", "{}", "null", "true"]
    assert run("(texts) => texts.map((text) => json.write(json.parse(text)))", texts) == [
        *("12345678901234567890", "-0.0", "1e400", "0.1000"),
        '"é\\n"',
        *("[]", "{}", "null", "true"),
    ]


READ = """(async () => {
    const given = JSON.parse(process.argv[1]);
    globalThis.location = { pathname: "/console", origin: "http://x" };
    globalThis.sessionStorage = { getItem: () => null };
    const { read } = await import(given.module);
    console.log(JSON.stringify(given.messages.map((message) => read(JSON.stringify(message)) !== null)));
})()"""


def test_events_are_those_of_the_server() -> None:
    change = {"type": "t", "key": "k", "value": 1, "headers": {"operation": "insert"}}
    messages: list[Any] = [1, None, "x", [], {}, {**change, "headers": "x"}, change]
    messages += [{**change, name: value} for name in ("type", "key") for value in ("", 1, None, "é")]
    messages += [{**change, "value": None}, {**change, "headers": {"operation": "replace"}}]
    messages += [{**change, "headers": {"operation": "insert", "txid": value}} for value in ("", "x", 1, None)]
    messages += [
        {**change, "headers": {"operation": "insert", "control": value}} for value in ("", "reset", "x", 1, None)
    ]
    for operation in ("insert", "update", "upsert", "delete"):
        messages.append({"type": "t", "key": "k", "headers": {"operation": operation}})
    assert NODE is not None
    argument = json.dumps({"messages": messages, "module": (DIRECTORY / "fold.js").as_uri()})
    done = subprocess.run([NODE, "--eval", READ, argument], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [is_change_event(message) or is_control_event(message) for message in messages]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_texts_survive_a_round_trip_and_are_split_at_their_ends() -> None:
    """In one run of Node: hypothesis makes the texts, and the module has to agree with Python about all of them."""
    values: list[list[Any]] = []

    @settings(max_examples=200, database=None)
    @given(st.lists(JSON_VALUES, min_size=1, max_size=4))
    def collect(value: list[Any]) -> None:
        values.append(value)

    collect()
    texts = [
        ",".join(json.dumps(one, ensure_ascii=number % 2 == 0) for one in value) for number, value in enumerate(values)
    ]
    script = """(texts) => texts.map((text) => json.elements(`[${text}]`).map((one) =>
        [json.write(json.parse(one)), json.byteLength(one)]))"""
    for value, text, parts in zip(values, texts, run(script, texts), strict=True):
        assert [json.loads(written) for written, _ in parts] == value
        # Between the elements is a comma each.
        assert sum(size for _, size in parts) + len(parts) - 1 == len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", ["", "[1,]", "{1:2}", '{"a"}', "[1 2]", "nul", "01", '"a', "[" * 600, "1 1", "+1"])
def test_what_is_not_json_is_refused(text: str) -> None:
    script = "(text) => { try { json.parse(text); return 'parsed'; } catch (error) { return error.name; } }"
    assert run(script, text) == "SyntaxError"


def test_differences() -> None:
    before = {"status": "new", "lines": [1, 2], "gone": None, "same": {"a": 1}}
    after = {"status": "paid", "lines": [1, 3, 4], "same": {"a": 1}, "added": True}
    script = """([before, after]) => json.differences(json.parse(before), json.parse(after))
        .map(([path, was, is]) => [path, was && json.write(was), is && json.write(is)])"""
    lines = run(script, [json.dumps(before), json.dumps(after)])
    assert lines == [
        ["status", '"new"', '"paid"'],
        ["lines[1]", "2", "3"],
        ["lines[2]", None, "4"],
        ["gone", "null", None],
        ["added", None, "true"],
    ]


def test_escapes_can_be_searched() -> None:
    assert run("(text) => json.unescaped(text)", r'{"city":"Troms\u00f8"}') == '{"city":"Tromsø"}'


METRICS = """# HELP x
x_total{a="1",b="q\\"uote"} 3
x_total{a="2"} 4
h_bucket{le="0.1"} 1
h_bucket{le="1"} 9
h_bucket{le="+Inf"} 10
"""


def test_metrics() -> None:
    script = """(text) => { const samples = metrics.parseMetrics(text); return [
        metrics.total(samples, "x_total"), metrics.total(samples, "x_total", { a: "2" }), metrics.total(samples, "y"),
        metrics.quantile(samples, null, "h", 0.5), metrics.quantile(samples, samples, "h", 0.5)]; }"""
    total, labelled, missing, median, nothing = run(script, METRICS)
    assert (total, labelled, missing, nothing) == (7, 4, None, None)
    assert 0.1 < median < 1


def test_sizes_and_hex() -> None:
    assert run("(numbers) => numbers.map(format.bytes)", [0, 1023, 1024, 5 << 20, 1 << 40]) == [
        *("0 B", "1,023 B", "1.0 KiB", "5.0 MiB", "1.0 TiB")
    ]
    [line] = run("(data) => format.hexLines(new Uint8Array(data), 100)", [0, 1, 104, 105])
    assert line.split() == ["00000000", "00", "01", "68", "69", "··hi"]


PATHS = """(given) => (async () => {
    const asked = [];
    const list = (parameters) => {
        asked.push(parameters);
        const after = parameters.get("after") ?? "";
        const found = given.paths.filter((path) => path.startsWith(parameters.get("prefix") ?? "") && path > after);
        const limit = Number(parameters.get("limit"));
        const next = found.length > limit ? found[limit - 1] : null;
        return { streams: found.slice(0, limit).map((path) => ({ path })), next_after: next };
    };
    globalThis.location = { pathname: "/console", origin: "http://x" };
    globalThis.sessionStorage = { getItem: () => null };
    globalThis.fetch = async (url) => Response.json(list(new URL(url, "http://x").searchParams));
    const { children } = await import(given.module);
    const page = await children("stream", given.prefix, null);
    return [page.found.map((one) => one.path), asked.length];
})()"""


def test_a_large_folder_costs_one_request() -> None:
    paths = sorted([*(f"a/{number:05}" for number in range(3000)), "b", "c/d/e", "c/d/f", "c/g", "a-b"])
    assert NODE is not None

    def children(prefix: str) -> Any:
        argument = json.dumps({"paths": paths, "prefix": prefix, "module": (DIRECTORY / "paths.js").as_uri()})
        source = f"({PATHS})({argument}).then((found) => console.log(JSON.stringify(found)))"
        done = subprocess.run([NODE or "", "--eval", source], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert children("") == [["a-b", "a/", "b", "c/"], 2]
    assert children("c/") == [["c/d/", "c/g"], 1]
    assert len(children("a/")[0]) == 200
