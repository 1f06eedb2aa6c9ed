"""The order of a producer's appends: first come, first decided, and nobody is left waiting."""

from __future__ import annotations

import asyncio

from headwater.engine.ordering import ProducerOrder

KEY = ("path", "p")


def test_places_are_reached_in_the_order_in_which_they_were_taken() -> None:
    async def main() -> None:
        order, decided = ProducerOrder(), []
        places = [order.enter(KEY) for _ in range(4)]

        async def decide(number: int) -> None:
            async with places[number]:
                await asyncio.sleep(0)
                decided.append(number)

        tasks = [asyncio.create_task(decide(number)) for number in (3, 1, 0, 2)]
        await asyncio.gather(*tasks)
        assert (decided, len(order)) == ([0, 1, 2, 3], 0)

    asyncio.run(main())


def test_a_place_that_is_left_before_it_was_reached_does_not_let_others_overtake() -> None:
    async def main() -> None:
        order = ProducerOrder()
        first, second, third = (order.enter(KEY) for _ in range(3))
        second.leave()
        assert first.reached.is_set()
        assert not third.reached.is_set()
        waiting = asyncio.create_task(third.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        last = order.enter(KEY)
        assert not last.reached.is_set()
        first.leave()
        first.leave()
        assert last.reached.is_set()
        last.leave()
        assert not order

    asyncio.run(main())


def test_an_append_is_held_back_unless_it_is_that_of_the_first_place() -> None:
    async def main() -> None:
        order = ProducerOrder()
        assert not order.holds_back(KEY)
        place = order.enter(KEY)
        assert order.holds_back(KEY)
        assert not order.holds_back(("path", "q"))
        assert not order.holds_back(None)
        with place.deciding():
            assert not order.holds_back(KEY)
        assert order.holds_back(KEY)
        place.leave()
        assert not order.holds_back(KEY)

    asyncio.run(main())
