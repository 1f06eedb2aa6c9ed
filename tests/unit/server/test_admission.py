from __future__ import annotations

import pytest

from headwater.errors import OverloadedError, TooManyRequestsError
from headwater.limits import Limits
from headwater.server.admission import Admission
from headwater.server.auth.callers import ANONYMOUS, Caller
from headwater.server.http import Frame, Request, Response, Sink
from headwater.server.live_places import LivePlaces
from headwater.server.problems import problem


def request(
    method: str = "POST",
    peer: str = "1.2.3.4",
    body: bytes = b"",
    identity: str = "",
    path: str = "/v1/stream/a",
) -> Request:
    return Request(method, path, "", {}, body, peer=peer, caller=Caller(identity, None))


class Desk:
    """An admission with a clock that stands still."""

    def __init__(self, **limits: int) -> None:
        self.now_s = 1_000.0
        self.admission = Admission(Limits(**limits), now_s=lambda: self.now_s)

    def pass_through(self, to_admit: Request, answer: Response | None = None) -> None:
        self.admission.meet(to_admit)
        self.admission.admit(to_admit, lambda _: None)(answer or Response(200))

    def refusal(self, to_admit: Request) -> TooManyRequestsError:
        with pytest.raises(TooManyRequestsError) as caught:
            self.pass_through(to_admit)
        return caught.value


class ListSink:
    blocked = False

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.ended = False

    def write(self, frame: Frame) -> None:
        self.frames.append(frame)

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


class TwoFrames:
    """A feed that writes two frames when it opens, and ends when it is told to."""

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        sink.write(Frame(b"x" * 60))
        sink.write(Frame(b"y" * 60))

    def finish(self) -> None:
        self._sink.end()

    def drained(self) -> None: ...
    def tick(self, now_s: float) -> None: ...
    def cancel(self) -> None: ...


def test_without_limits_there_is_no_admission() -> None:
    assert not Admission(Limits())
    assert Admission(Limits(bytes_per_s_per_address=1))


def test_the_rate_of_an_address_and_how_long_to_wait() -> None:
    desk = Desk(requests_per_s_per_address=2)
    desk.pass_through(request())
    desk.pass_through(request())
    error = desk.refusal(request())
    assert error.retry_after_s == pytest.approx(0.5)
    assert dict(problem(error).headers)["retry-after"] == "1"
    desk.pass_through(request(peer="1.2.3.5"))
    desk.now_s += 1  # as Retry-After says
    desk.pass_through(request())


def test_an_ipv6_client_is_its_network_and_a_mapped_address_is_ipv4() -> None:
    desk = Desk(requests_per_s_per_address=1)
    desk.pass_through(request(peer="2001:db8::1"))
    desk.refusal(request(peer="2001:db8::ffff:2%eth0"))
    desk.pass_through(request(peer="2001:db8:0:1::1"))
    desk.pass_through(request(peer="::ffff:9.9.9.9"))
    desk.refusal(request(peer="9.9.9.9"))


def test_identities_are_counted_wherever_they_come_from() -> None:
    desk = Desk(requests_per_s_per_identity=1)
    desk.pass_through(request(identity="alice"))
    desk.refusal(request(identity="alice", peer="5.6.7.8"))
    desk.pass_through(request(identity="bob"))
    desk.pass_through(request())  # no token: the address


def test_callers_without_a_token_are_counted_by_their_address() -> None:
    desk = Desk(requests_per_s_per_identity=1)
    for identity in ("", ANONYMOUS):
        desk.pass_through(request(identity=identity, peer=f"5.6.7.{len(identity)}"))
        desk.refusal(request(identity=identity, peer=f"5.6.7.{len(identity)}"))
        desk.pass_through(request(identity=identity, peer=f"5.6.8.{len(identity)}"))
    desk.pass_through(request(identity=ANONYMOUS, peer="2001:db8::1"))
    desk.refusal(request(identity=ANONYMOUS, peer="2001:db8::2"))


def test_users_of_a_signed_url_do_not_spend_the_quota_of_the_signer() -> None:
    desk = Desk(requests_per_s_per_identity=1)

    def signed(signature: str, peer: str) -> Request:
        first = request("GET", identity="alice", peer=peer)
        first.caller.signature = signature
        return first

    desk.pass_through(signed("mac", "5.6.7.8"))
    desk.refusal(signed("mac", "5.6.7.8"))
    desk.pass_through(signed("mac", "5.6.7.9"))
    desk.pass_through(signed("another", "5.6.7.8"))
    desk.pass_through(request(identity="alice", peer="5.6.7.8"))
    desk.pass_through(request(peer="5.6.7.8"))


def test_a_name_is_not_taken_for_an_address_nor_for_another_identity() -> None:
    desk = Desk(requests_per_s_per_identity=1)
    desk.pass_through(request(peer="5.6.7.8"))
    desk.pass_through(request(identity="5.6.7.8"))
    for issuer in ("~one:alice", "~two:alice"):
        first = request(identity="alice")
        first.caller.id = issuer
        desk.pass_through(first)
        desk.refusal(first)


def test_a_refusal_takes_nothing() -> None:
    desk = Desk(requests_per_s_per_identity=1, bytes_per_s_per_identity=100)
    desk.pass_through(request(body=b"x" * 100))
    desk.now_s += 1
    desk.pass_through(request(body=b"x" * 50))
    for _ in range(10):
        desk.refusal(request(body=b"x" * 50))
    desk.now_s += 1
    desk.pass_through(request(body=b"x" * 100))


def test_bytes_that_are_sent_count_for_the_next_request() -> None:
    desk = Desk(bytes_per_s_per_address=100)
    desk.pass_through(request("GET"), Response(200, body=(b"x" * 150, memoryview(b"y" * 150))))
    assert desk.refusal(request(body=b"z")).retry_after_s == pytest.approx(2.01)


def test_the_frames_of_a_feed_count() -> None:
    desk = Desk(bytes_per_s_per_identity=100)
    answer, sink = Response(200, feed=TwoFrames()), ListSink()
    desk.pass_through(request("GET"), answer)
    assert answer.feed is not None
    answer.feed.open(sink, 0.0)
    assert len(sink.frames) == 2
    assert desk.refusal(request(body=b"z")).retry_after_s == pytest.approx(0.21)


def test_health_checks_are_always_answered() -> None:
    desk = Desk(requests_per_s_per_address=1)
    for _ in range(3):
        desk.pass_through(request("GET", path="/healthz"))


def test_live_readers_in_all_and_of_an_identity() -> None:
    places, limits = LivePlaces(), Limits(live_readers_max=3, live_readers_per_identity_max=2)
    feeds = []
    for identity in ("alice", "alice", "bob"):
        place = places.claim(limits, request(identity=identity))
        assert place is not None
        response = place.hold(Response(200, feed=TwoFrames()))
        assert response.feed is not None
        response.feed.open(ListSink(), 0.0)
        feeds.append(response.feed)
    with pytest.raises(TooManyRequestsError):
        places.claim(limits, request(identity="alice"))
    with pytest.raises(OverloadedError):
        places.claim(limits, request(identity="carol"))
    feeds[0].finish()
    feeds[0].cancel()  # both, as a connection does that is lost while its feed ends
    for _ in range(2):
        assert places.claim(limits, request(identity="alice")) is not None  # claimed and not taken
    feeds[2].cancel()
    place = places.claim(limits, request(identity="bob"))
    assert place is not None
    with place:
        assert len(places) == 2
    assert len(places) == 1


def test_live_readers_without_a_limit_are_not_counted() -> None:
    assert LivePlaces().claim(Limits(), request()) is None
