"""`headwater copy` between data directories: everything is kept, also after interruptions."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from bench.servers import headwater

from headwater.store import copying
from headwater.store.copying import Portion
from headwater.store.embedded.copies import DirectoryCopy
from tests.command_line import invoke
from tests.copied import TEXT, fill, seen


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    directory = tmp_path_factory.mktemp("copy") / "source"
    with headwater("--data-dir", str(directory), "--limit", "segment_bytes=300000") as server:
        root = f"http://127.0.0.1:{server.port}"
        fill(root)
        answers = seen(root)
    return directory, answers


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "COPY_BATCH_BYTES", 30_000)
    monkeypatch.setattr(copying, "COPY_STREAMS", 7)


def run(*arguments: object) -> tuple[int, str]:
    result = invoke(["copy", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_copy_answers_as_its_source(source: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    directory, answers = source
    code, said = run(directory, tmp_path / "copy")
    assert code == 0, said
    assert "compared them" in said
    checked = invoke(["check", str(tmp_path / "copy")])
    assert checked.exit_code == 0, checked.output
    with headwater("--data-dir", str(tmp_path / "copy")) as server:
        root = f"http://127.0.0.1:{server.port}"
        assert seen(root) == answers
        retry = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "39"}
        assert httpx.post(f"{root}/v1/stream/big", headers=TEXT | retry, content="again").status_code == 204
        assert httpx.put(f"{root}/v1/stream/new", headers=TEXT).status_code == 201


@pytest.mark.usefixtures("small_portions")
def test_an_interrupted_copy_goes_on(
    source: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted after each portion, and before it is complete."""
    directory, _ = source
    target = tmp_path / "copy"
    put, complete = DirectoryCopy.put, DirectoryCopy.complete
    portions: list[int] = []

    class Killed(BaseException):
        pass

    async def put_one(copy: DirectoryCopy, portion: Portion) -> None:
        await put(copy, portion)
        if portion.states or portion.runs:
            portions.append(len(portion.states))
            raise Killed

    async def not_completed(copy: DirectoryCopy) -> None:
        raise Killed

    monkeypatch.setattr(DirectoryCopy, "put", put_one)
    monkeypatch.setattr(DirectoryCopy, "complete", not_completed)
    for _ in range(200):
        before = len(portions)
        with pytest.raises(Killed):
            run(directory, target)
        if len(portions) == before:
            break
        code, said = run(target, tmp_path / "other")
        assert (code, "a copy that was not finished" in said) == (1, True)
    assert len(portions) > 5
    monkeypatch.setattr(DirectoryCopy, "complete", complete)
    code, said = run(directory, target)
    assert code == 0, said
    assert run(directory, target) == (
        1,
        f"headwater: {target} is a data directory; give one that does not exist or is empty\n",
    )


def test_refusals(source: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = source
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, said = run(directory, tmp_path / "full")
    assert (code, "is not empty, and no unfinished copy" in said) == (1, True)
    code, said = run(directory, directory)
    assert (code, "cannot be copied to itself" in said) == (2, True)
    code, said = run(tmp_path / "nothing", tmp_path / "copy")
    assert (code, "not a Headwater data directory" in said) == (1, True)
    assert not (tmp_path / "copy").exists()
    with headwater("--data-dir", str(tmp_path / "used")) as server:
        code, said = run(tmp_path / "used", tmp_path / "copy")
        assert (code, f"in use by process {server.pid}" in said) == (1, True)
        assert httpx.put(f"{server.url}/a", headers=TEXT).is_success
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryCopy, "complete", DirectoryCopy.close)  # it is not finished
        assert run(tmp_path / "used", tmp_path / "copy")[0] == 0
    code, said = run(directory, tmp_path / "copy")
    assert (code, "is an unfinished copy of" in said) == (1, True)
    with headwater("--data-dir", str(tmp_path / "used")) as server:
        assert httpx.put(f"{server.url}/b", headers=TEXT).is_success
    code, said = run(tmp_path / "used", tmp_path / "copy")
    assert (code, "was changed after the unfinished copy" in said) == (1, True)


def test_a_difference_is_found(
    source: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = source
    put = DirectoryCopy.put

    async def damaged(copy: DirectoryCopy, portion: Portion) -> None:
        if portion.runs:
            run, state = portion.runs[0]
            portion.runs[0] = (run._replace(data=b"?" + run.data[1:]), state)
        await put(copy, portion)

    monkeypatch.setattr(DirectoryCopy, "put", damaged)
    code, said = run(directory, tmp_path / "copy")
    assert (code, "is not the same in the copy and its source" in said) == (1, True)
    assert not (tmp_path / "copy" / "FORMAT").exists()
