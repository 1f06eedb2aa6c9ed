"""The client over a hostile network: every message is read or stored once and in order, in both shells."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from bench.servers import Server, headwater

from headwater.client import Client, ProducerTuple, Put, Remove, Retry, Stream, Timeouts
from headwater.client.outbox import DeliveryReport
from headwater.errors import HeadwaterError
from tests.fault.hostile import CALM, KINDS, Fate, hostile, seeded
from tests.quick import quick
from tests.shells import SHELLS, client_of

SEEDS = range(int(os.environ.get("SEEDS", "6")))
PATIENT = Retry(attempts=1_000, first_s=0.001, most_s=0.004)
TIMEOUTS = Timeouts(answer_s=5, long_poll_s=5, sse_idle_s=5, sse_first_s=5)
LIVE_MODES: tuple[Any, ...] = (False, "long-poll", "sse", True)
MET: Counter[str] = Counter()  # faults of this run
MESSAGES = [{"n": number, "text": "é" * (number % 7) + "\r\n\n"} for number in range(300)]


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with short responses, so that a read needs many."""
    limits = ("read_chunk_bytes=1500", "sse_chunk_bytes=700", "long_poll_s=0.3", "sse_lifetime_s=0.4")
    with headwater("--memory", *(part for limit in limits for part in ("--limit", limit))) as server:
        yield server


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    """A server with responses of a few hundred bytes, for tests that close them at every byte."""
    with headwater("--memory", "--limit", "read_chunk_bytes=300") as server:
        yield server


def _direct(server: Server) -> Client:
    return Client(f"http://{server.host}:{server.port}")


def _behind(server: Server, url: str) -> str:
    return url.replace(f"http://{server.host}:{server.port}", "")


@pytest.mark.parametrize("live", LIVE_MODES)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seed", quick(2, SEEDS))
def test_a_read_is_exact(small: Server, seed: int, shell: str, live: Any) -> None:
    with _direct(small) as direct, hostile(small, seeded(seed)) as proxy:
        stream = direct.stream(f"read/{seed}-{shell}-{live}")
        stream.create()
        for start in range(0, 200, 4):
            stream.append_many(MESSAGES[start : start + 4])
        writer = _in_background(stream, MESSAGES[200:], live=live)
        with client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            seen = client.stream(proxy.url + _behind(small, stream.url)).read(live=live).all()
        writer.join()
        if live is False:
            assert seen == MESSAGES[: len(seen)]
            assert len(seen) >= 200
        else:
            assert seen == MESSAGES
        MET.update(proxy.fates)


def test_the_network_was_hostile() -> None:
    if not MET:
        pytest.skip("no read was run")
    assert set(MET) == {CALM, *KINDS}
    assert MET.total() - MET[CALM] > MET.total() / 3


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_read_of_bytes_is_exact(small: Server, shell: str, content_type: str) -> None:
    expected = b"".join(b"%d\r\n" % number for number in range(2_000))
    with _direct(small) as direct, hostile(small, seeded(7)) as proxy:
        stream = direct.stream(f"bytes/{shell}/{content_type}", content_type=content_type)
        stream.create()
        for number in range(2_000):
            if number % 10 == 0:
                stream.append(b"".join(b"%d\r\n" % n for n in range(number, number + 10)))
        stream.close()
        with client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.stream(proxy.url + _behind(small, stream.url))
            for live in (False, "long-poll", True):
                assert b"".join(there.read(type=bytes, live=live).all()) == expected


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seed", quick(2, SEEDS))
def test_a_producer_is_exact(small: Server, seed: int, shell: str) -> None:
    with _direct(small) as direct, hostile(small, seeded(seed)) as proxy:
        stream = direct.stream(f"produce/{seed}-{shell}")
        stream.create()
        reports: list[DeliveryReport] = []
        with client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.stream(proxy.url + _behind(small, stream.url))
            with there.producer(
                batch_bytes=300, linger_s=0.001, queue_bytes=2_000, on_delivery=reports.append
            ) as producer:
                for message in MESSAGES:
                    producer.append(message)
        assert stream.read().all() == MESSAGES
        assert sum(delivery.count for delivery in reports) == len(MESSAGES)
        assert producer.metrics.retries > 0
        assert producer.metrics.duplicates > 0


def test_without_producer_headers_the_same_network_duplicates(small: Server) -> None:
    """Shows that the test above can fail: without sequence numbers there are duplicates."""
    wrong = 0
    for seed in SEEDS:
        with _direct(small) as direct, hostile(small, seeded(seed)) as proxy:
            stream = direct.stream(f"naive/{seed}")
            stream.create()
            with Client(proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
                there = client.stream(proxy.url + _behind(small, stream.url), content_type="application/json")
                for message in MESSAGES[:100]:
                    while True:
                        try:
                            there.append(message)
                            break
                        except HeadwaterError:
                            continue
            wrong += stream.read().all() != MESSAGES[:100]
    assert wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "reset"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_connection_closed_at_every_byte_of_a_response(tiny: Server, shell: str, kind: str) -> None:
    """The connection is closed at each byte of each response of a read, also after the last byte."""
    with _direct(tiny) as direct:
        stream = direct.stream(f"every/{shell}-{kind}")
        stream.create()
        for number in range(4):
            stream.append('aé€\U0001f600\r\n"\\' * 7 + str(number))
        expected = stream.read().all()
        at_byte = 0

        def decide(what: str, times: int) -> Fate:
            return Fate(kind, at_byte) if times == 0 else Fate()

        with hostile(tiny, decide) as proxy, client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.stream(proxy.url + _behind(tiny, stream.url))
            while at_byte == 0 or max(proxy.seen.values()) > 1:
                proxy.seen.clear()
                assert there.read().all() == expected, f"ended at byte {at_byte}"
                at_byte += 1
        assert at_byte > 600


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_response_closed_at_every_byte(small: Server, live: Any, shell: str) -> None:
    """One long read whose live connections are closed one byte later each time, while messages arrive."""
    with _direct(small) as direct:
        stream = direct.stream(f"live/{live}-{shell}")
        stream.create(messages=MESSAGES[:1])
        cuts = iter(range(700))

        def decide(what: str, times: int) -> Fate:
            return Fate("cut", next(cuts, 1 << 30)) if "live=" in what else Fate()

        with hostile(small, decide) as proxy, client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            writer = _in_background(stream, MESSAGES[1:], live=live, pause_s=0.004)
            seen = client.stream(proxy.url + _behind(small, stream.url)).read(live=live).all()
            writer.join()
            assert seen == MESSAGES
            assert proxy.fates["cut"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_producer_response_closed_at_every_byte(small: Server, shell: str) -> None:
    with _direct(small) as direct:
        stream = direct.stream(f"acks/{shell}")
        stream.create()
        cuts = iter(range(300))

        def decide(what: str, times: int) -> Fate:
            return Fate("cut", next(cuts)) if what.startswith("POST") and times == 0 else Fate()

        with hostile(small, decide) as proxy, client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.stream(proxy.url + _behind(small, stream.url))
            with there.producer(batch_bytes=1, linger_s=0) as producer:
                for number in range(300):
                    producer.append(number)
        assert stream.read().all() == list(range(300))


def test_a_seed_determines_all_faults_and_reaches_every_kind() -> None:
    fates = [seeded(3)(f"GET /{number}", times) for number in range(100) for times in range(3)]
    assert fates == [seeded(3)(f"GET /{number}", times) for number in range(100) for times in range(3)]
    assert {fate.kind for fate in fates} == {CALM, *KINDS}


def test_headers_and_token_are_on_every_request(small: Server) -> None:
    with _direct(small) as direct, hostile(small, seeded(1)) as proxy:
        stream = direct.stream("headers")
        stream.create()
        for message in MESSAGES:
            stream.append(message)
        stream.close()
        with Client(
            proxy.url, retry=PATIENT, timeouts=TIMEOUTS, token=lambda: "secret", headers={"X-Tenant": "t"}
        ) as client:
            client.stream(proxy.url + _behind(small, stream.url)).read(live=True).all()
        assert len(proxy.headers) > 5
        assert {headers["x-tenant"] for headers in proxy.headers} == {"t"}
        assert {headers["authorization"] for headers in proxy.headers} == {"Bearer secret"}


def _in_background(stream: Stream, messages: list[Any], *, live: Any, pause_s: float = 0.002) -> threading.Thread:
    def write() -> None:
        for start in range(0, len(messages), 3):
            stream.append_many(messages[start : start + 3])
            time.sleep(pause_s)
        if live is not False:
            stream.close()

    writer = threading.Thread(target=write)
    writer.start()
    return writer


# Tables


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seed", quick(2, SEEDS))
def test_a_table_is_read_and_followed_exactly(small: Server, seed: int, shell: str) -> None:
    with _direct(small) as direct, hostile(small, seeded(seed)) as proxy:
        table = direct.table(f"read/{seed}-{shell}")
        table.create()
        for start in range(0, 200, 5):
            table.append([Put(f"k{n % 30}", "é" * (n % 9)) for n in range(start, start + 5)])
        expected = table.rows().all()
        with client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.table(proxy.url + _behind(small, table.url))
            assert there.rows().all() == expected
            assert there.rows(since_id=-20).all() == expected[-20:]
            assert there.active() == {row.key: row for row in expected[-30:]}
            table.append([Remove("k1")], close=True)
            assert there.follow().all() == [*expected, *table.rows(since_id=200).all()]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seed", quick(2, SEEDS))
def test_appends_of_a_producer_to_a_table_are_exact(small: Server, seed: int, shell: str) -> None:
    with _direct(small) as direct, hostile(small, seeded(seed)) as proxy:
        table = direct.table(f"produce/{seed}-{shell}")
        table.create()
        with client_of(shell, proxy.url, retry=PATIENT, timeouts=TIMEOUTS) as client:
            there = client.table(proxy.url + _behind(small, table.url))
            for seq in range(60):
                there.append([Put(f"k{seq}", str(n)) for n in range(seq % 3 + 1)], producer=ProducerTuple("p", 0, seq))
        rows = table.rows().all()
        assert [row.seqno for row in rows] == list(range(1, 121))
        assert [(row.key, row.record) for row in rows] == [
            (f"k{seq}", str(n)) for seq in range(60) for n in range(seq % 3 + 1)
        ]
