"""The fold of state events into entities, against a dictionary."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.limits import ENTITY_NAME_BYTES_MAX
from headwater.protocol.state.entities import Entities, entity_name

NAMES = st.one_of(
    st.text(st.sampled_from('a\0\x01b/é😀￿ %"\\'), min_size=1, max_size=4),
    st.text(st.sampled_from("a\0"), min_size=1, max_size=2),  # so that many begin with another one and a zero byte
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "upsert", "delete", "reset"]),
        NAMES,
        NAMES,
        st.sampled_from(
            ["1.50", "12345678901234567890123", '{"a": [1,  2]}', '"é\\u0000"', "null", '"' + "x" * 300 + '"']
        ),
    )
)


def message(operation: str, entity_type: str, key: str, value: str) -> str:
    if operation == "reset":
        return '{"headers":{"control":"reset"}}'
    written = "" if operation == "delete" else f'"value": {value} ,'
    return (
        f'{{"type":{json.dumps(entity_type)},"key":{json.dumps(key, ensure_ascii=False)},'
        f'{written}"headers":{{"operation":"{operation}"}}}}'
    )


def folded(messages: list[str], state: Entities | None = None) -> Entities:
    state = state or Entities()
    for _ in state.fold("".join(one + "," for one in messages).encode()):
        pass
    return state


def plainly(changes: list[tuple[str, str, str, str]]) -> dict[tuple[str, str], str]:
    live: dict[tuple[str, str], str] = {}
    for operation, entity_type, key, value in changes:
        if operation == "reset":
            live.clear()
        elif operation == "delete":
            live.pop((entity_type, key), None)
        else:
            live[entity_type, key] = value
    return live


def shown(state: Entities, entity_type: str | None = None, limit: int = 3) -> list[tuple[str, str, str]]:
    """All entities, page by page."""
    shown, after, more = [], b"", True
    while more:
        page, more = state.page(entity_type, after, limit, 400)
        assert page or not more
        shown += [(one.type, one.key, bytes(one.value).decode()) for one in page]
        after = page[-1].name if page else b""
    return shown


@pytest.mark.parametrize("run_bytes", [1, 40, 400])
@given(changes=CHANGES, cut=st.integers(0, 20))
def test_entities_are_those_of_the_plain_fold(run_bytes: int, changes: list[Any], cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ENTITY_RUN_BYTES", run_bytes)
        state = folded([message(*change) for change in changes[:cut]])
        folded([message(*change) for change in changes[cut:]], state)
        live = plainly(changes)
        expected = sorted([(*name, value) for name, value in live.items()])
        assert shown(state) == expected
        assert state.count == len(expected)
        for entity_type in {change[1] for change in changes}:
            assert shown(state, entity_type) == [one for one in expected if one[0] == entity_type]
        for _, entity_type, key, _ in changes:
            entity = state.get(entity_type, key)
            assert (None if entity is None else bytes(entity.value).decode()) == live.get((entity_type, key))


def test_keys_that_differ_by_a_zero_byte() -> None:
    longer = message("upsert", "t", "k\0", "1")
    state = folded([longer])
    assert state.get("t", "k") is None
    folded([message("delete", "t", "k", "")], state)
    assert shown(state) == [("t", "k\0", "1")]
    folded([message("upsert", "t", "k", "2")], state)
    assert shown(state, limit=1) == [("t", "k", "2"), ("t", "k\0", "1")]


def test_many_entities_in_any_order() -> None:
    chosen = random.Random(5)
    changes = [
        (chosen.choice(["upsert"] * 4 + ["delete"]), f"t{chosen.randrange(5)}", str(chosen.randrange(3_000)), str(n))
        for n in range(20_000)
    ]
    state = folded([message(*change) for change in changes])
    expected = sorted([(*name, value) for name, value in plainly(changes).items()])
    assert shown(state, limit=1_000) == expected
    text_bytes = sum(len(entity_name(one, key)) + len(value) + 1 for one, key, value in expected)
    assert text_bytes < state.size_bytes < 2 * text_bytes
    folded(['{"headers":{"control":"reset"}}'], state)
    assert (shown(state), state.count) == ([], 0)


def test_large_values_are_in_runs_of_their_own() -> None:
    large = '"' + "x" * 100_000 + '"'
    changes = [("upsert", "t", key, large if key in "cgm" else key * 2) for key in "123456789"]
    changes += [("upsert", "t", f"{n:02}", large if n % 3 else str(n)) for n in (5, 3, 4, 9, 1, 2, 8, 7, 6)] * 2
    state = folded([message(*change) for change in changes])
    assert shown(state) == sorted([(*name, value) for name, value in plainly(changes).items()])
    for run in state._runs:
        assert len(run) <= 2 * limits.ENTITY_RUN_BYTES or run.count(b"\xff") == 1


@pytest.mark.parametrize("control", ["snapshot-start", "snapshot-end", "up-to-date", "something-else"])
def test_other_controls_have_no_effect(control: str) -> None:
    state = folded([message("upsert", "t", "k", "1"), f'{{"headers":{{"control":"{control}"}}}}'])
    assert shown(state) == [("t", "k", "1")]


def test_messages_that_are_no_events_are_counted() -> None:
    bad = ["1", "{}", '{"type":"t","key":"","value":1,"headers":{"operation":"insert"}}', '"},{"']
    state = folded([bad[0], message("upsert", "t", "k", "1"), *bad[1:]])
    assert (shown(state), state.skipped) == ([("t", "k", "1")], 4)
    assert state.reason


def test_a_name_that_no_url_can_have_is_left_out_and_counted() -> None:
    longest = "k" * (ENTITY_NAME_BYTES_MAX - 3)
    state = folded([message("upsert", "t", longest, "1"), message("upsert", "t", longest + "k", "2")])
    assert shown(state) == [("t", longest, "1")]
    assert (state.skipped, state.reason) == (1, f"type and key have more than {ENTITY_NAME_BYTES_MAX} bytes")


def test_a_page_starts_after_a_name_that_was_deleted() -> None:
    state = folded([message("upsert", "t", key, "1") for key in "abcd"])
    name = state.page("t", b"", 2, 1_000).entities[-1].name
    folded([message("delete", "t", "b", "")], state)
    assert [one.key for one in state.page("t", name, 2, 1_000).entities] == ["c", "d"]


def test_an_entity_that_was_found_does_not_change() -> None:
    state = folded([message("upsert", "t", "a", "1")])
    entity = state.get("t", "a")
    folded([message("upsert", "t", "a", "2")], state)
    assert entity is not None
    assert (entity.type, entity.key, bytes(entity.value)) == ("t", "a", b"1")
