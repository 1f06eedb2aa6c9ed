"""JWTs: what is taken, and what is refused however it is signed."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import AllowedPrivateKeys

from headwater.errors import OverloadedError, TargetUnreachableError, UnauthorizedError
from headwater.limits import AUTH_LEEWAY_S, AUTH_NAME_LENGTH_MAX
from headwater.outbound import Answer, OutboundClient
from headwater.server.auth.callers import Caller
from headwater.server.auth.fetching import RemoteKeys
from headwater.server.auth.issuers import Issuer, identity_name, verify_jwt
from headwater.server.auth.keys import KeySet, key_of_pem, key_of_secret, keys_of_jwks, keys_of_tables
from headwater.server.auth.scopes import Action, parse_scopes
from tests import virtual_time

ISS, AUD = "https://id.example", "headwater"
SECRET = "a secret of more than thirty-two bytes"
ED, EC, RSA = (
    ed25519.Ed25519PrivateKey.generate(),
    ec.generate_private_key(ec.SECP256R1()),
    rsa.generate_private_key(65537, 2048),
)
SIGNED_BY: dict[str, Any] = {"EdDSA": ED, "ES256": EC, "RS256": RSA, "HS256": SECRET}


def pem(private: Any) -> str:
    return str(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def jwk(algorithm: str, **more: str) -> dict[str, Any]:
    if algorithm == "HS256":
        return {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode(), **more}
    public = SIGNED_BY[algorithm].public_key()
    return {**json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(public)), **more}


PEMS = {"EdDSA": pem(ED), "ES256": pem(EC), "RS256": pem(RSA)}
KEYS = [key_of_secret(SECRET), *map(key_of_pem, PEMS.values())]
ISSUERS = {ISS: Issuer(ISS, [AUD], KeySet(KEYS))}


def claims(**more: object) -> dict[str, object]:
    payload = {"iss": ISS, "aud": AUD, "sub": "ann", "exp": int(time.time()) + 60, "scope": "read:a/** openid", **more}
    return {name: value for name, value in payload.items() if value is not None}


def signed(algorithm: str = "EdDSA", headers: dict[str, Any] | None = None, **more: object) -> str:
    return jwt.encode(claims(**more), SIGNED_BY[algorithm], algorithm, headers)


def verify(token: str, issuers: dict[str, Issuer] = ISSUERS) -> Caller:
    return verify_jwt(token, issuers, time.time())


@pytest.mark.parametrize("algorithm", SIGNED_BY)
def test_a_token_of_each_algorithm_is_taken(algorithm: str) -> None:
    caller = verify(signed(algorithm))
    assert caller.name == f"{ISS}:ann"
    assert caller.may(Action.READ, "a/b")
    assert not caller.may(Action.APPEND, "a/b")
    assert not caller.may(Action.READ, "b")


@pytest.mark.parametrize("algorithm", SIGNED_BY)
def test_a_key_is_good_for_its_own_algorithm_alone(algorithm: str) -> None:
    keys = keys_of_tables([jwk(algorithm)])
    assert [key.algorithm for key in keys] == [algorithm]
    issuers = {ISS: Issuer(ISS, [AUD], KeySet(keys))}
    assert verify(signed(algorithm), issuers).name
    for other in SIGNED_BY.keys() - {algorithm}:
        with pytest.raises(UnauthorizedError):
            verify(signed(other), issuers)


def forged(header: dict[str, Any], key: bytes = b"") -> str:
    """A token that no library would make."""
    import hashlib
    import hmac

    parts = [base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=") for part in (header, claims())]
    mac = hmac.digest(key, b".".join(parts), hashlib.sha256) if key else b""
    return b".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()


@pytest.mark.parametrize("algorithm", PEMS)
def test_a_public_key_is_no_secret_of_hs256(algorithm: str) -> None:
    issuers = {ISS: Issuer(ISS, [AUD], KeySet([key_of_pem(PEMS[algorithm])]))}
    for key in (PEMS[algorithm].encode(), PEMS[algorithm].strip().encode()):
        with pytest.raises(UnauthorizedError):
            verify(forged({"alg": "HS256", "typ": "JWT"}, key), issuers)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "HS384", "RS512", "PS256", None, 1, ["HS256"]])
def test_other_algorithms_are_refused(alg: object) -> None:
    with pytest.raises(UnauthorizedError):
        verify(forged({"alg": alg, "typ": "JWT"}))
    with pytest.raises(UnauthorizedError):
        verify(forged({"alg": alg, "typ": "JWT"}, SECRET.encode()))


def test_a_header_that_must_be_understood_is_refused() -> None:
    for more in ({"crit": ["exp"], "exp": 1}, {"b64": False, "crit": ["b64"]}):
        with pytest.raises(UnauthorizedError):
            verify(forged({"alg": "HS256", **more}, SECRET.encode()))
    assert verify(forged({"alg": "HS256", "jku": "https://evil.example", "jwk": {}}, SECRET.encode())).name


@pytest.mark.parametrize(
    "text", ["[" * 8_000, '{"iss":' * 2_000, '{"exp":' + "9" * 5_000 + "}", "\ud800", "null", "[]"]
)
def test_hostile_json_is_refused(text: str) -> None:
    parts = [base64.urlsafe_b64encode(part.encode("utf-8", "replace")).decode() for part in ('{"alg":"HS256"}', text)]
    for token in (".".join([*parts, "x"]), ".".join([parts[1], parts[0], "x"])):
        with pytest.raises(UnauthorizedError):
            verify(token)


BAD = {
    "expired": {"exp": int(time.time()) - 1},
    "without an end": {"exp": None},
    "an end that is no number": {"exp": "tomorrow"},
    "never ends": {"exp": 1e400},
    "not valid yet": {"nbf": int(time.time()) + AUTH_LEEWAY_S + 3_600},
    "issued in the future": {"iat": int(time.time()) + AUTH_LEEWAY_S + 3_600},
    "another issuer": {"iss": "https://other.example"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "other"},
    "no audience": {"aud": None},
}


@pytest.mark.parametrize("more", BAD.values(), ids=BAD)
def test_a_token_is_refused_that_is(more: dict[str, Any]) -> None:
    with pytest.raises(UnauthorizedError):
        verify(signed(**more))


@pytest.mark.parametrize("algorithm", SIGNED_BY)
def test_a_signature_of_another_key_is_refused(algorithm: str) -> None:
    others: dict[str, AllowedPrivateKeys | str] = {
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "RS256": rsa.generate_private_key(65537, 2048),
        "HS256": SECRET[::-1],
    }
    token = jwt.encode(claims(), others[algorithm], algorithm)
    with pytest.raises(UnauthorizedError, match="signature"):
        verify(token)
    head, body, mac = signed(algorithm).split(".")
    for broken in (
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}..{mac}",
        f"{head}.{body[:-2]}.{mac}",
        "..",
        "",
        "a.b.c",
    ):
        with pytest.raises(UnauthorizedError):
            verify(broken)


def test_a_clock_of_the_issuer_may_be_a_little_ahead_but_the_end_is_exact() -> None:
    assert verify(signed(nbf=int(time.time()) + 10, iat=int(time.time()) + 10)).name
    until_s = int(time.time()) + 60
    assert verify(signed(exp=until_s)).until_s == until_s


def test_the_file_narrows_what_the_tokens_of_an_issuer_allow() -> None:
    issuers = {ISS: Issuer(ISS, [AUD], KeySet(KEYS), parse_scopes(["read:a/*"]), "permissions")}
    caller = verify(signed(permissions=["admin:**"], scope="read:b"), issuers)
    assert caller.may(Action.READ, "a/b")
    assert not caller.may(Action.READ, "a/b/c")
    assert not caller.may(Action.DELETE, "a/b")
    assert not caller.may(Action.READ, "b")
    assert not caller.may_administer


@pytest.mark.parametrize("scope", [None, "", "openid", 5, {"read": "**"}, ["read:"], "read:" + "**a" * 50])
def test_a_token_without_scopes_allows_nothing(scope: object) -> None:
    caller = verify(signed(scope=scope))
    assert not any(caller.may(action, "a") for action in Action)


def test_names_are_short_printable_and_differ() -> None:
    subjects = ["ann", "x" * 500, "x" * 499 + "y", "a\nb", "a\rb", ""]
    names = [identity_name(ISS, subject) for subject in subjects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= AUTH_NAME_LENGTH_MAX and name.isprintable() for name in names)


# Keys


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_a_jwks_gives_what_can_be_used_of_it_and_no_published_secret() -> None:
    other = json.loads(jwt.get_algorithm_by_name("ES384").to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key()))
    data = jwks(jwk("EdDSA", kid="1"), other, jwk("RS256", use="enc"), jwk("HS256"), {"kty": "RSA"}, {"kid": 5})
    assert [(key.algorithm, key.kid) for key in keys_of_jwks(data, secrets=False)] == [("EdDSA", "1")]
    assert len(keys_of_jwks(data, secrets=True)) == 2
    for bad in (b"", b"[]", b'{"keys": []}', jwks(jwk("HS256")), jwks({"kty": "RSA", "n": "AQAB", "e": "AQAB"})):
        with pytest.raises(ValueError, match=r"JWKS|key"):
            keys_of_jwks(bad, secrets=False)


def test_private_parts_of_a_jwk_are_left_out() -> None:
    private = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(RSA))
    assert "d" in private
    (key,) = keys_of_tables([private])
    assert not hasattr(key.key, "sign")


def test_weak_keys_are_refused_without_being_told() -> None:
    with pytest.raises(ValueError, match="32 bytes") as error:
        key_of_secret("hush")
    assert "hush" not in str(error.value)
    with pytest.raises(ValueError, match="2048"):
        key_of_pem(pem(rsa.generate_private_key(65537, 1024)))
    with pytest.raises(ValueError, match="PEM"):
        key_of_pem(pem(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(ValueError, match="32 bytes"):
        keys_of_tables([{"kty": "oct", "k": "AAAA"}])
    assert SECRET not in repr(key_of_secret(SECRET))


def test_a_kid_names_the_key() -> None:
    keys = keys_of_jwks(jwks(jwk("EdDSA", kid="1"), jwk("RS256", kid="2")), secrets=False)
    issuers = {ISS: Issuer(ISS, [AUD], KeySet(keys))}
    assert verify(signed("EdDSA", {"kid": "1"}), issuers).name
    assert verify(signed("EdDSA"), issuers).name
    with pytest.raises(UnauthorizedError):
        verify(signed("EdDSA", {"kid": "2"}), issuers)
    with pytest.raises(UnauthorizedError):
        verify(signed("EdDSA", {"kid": "3"}), issuers)


class FakeClient(OutboundClient):
    """Answers what it is told to."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def request(self, method: str, url: str, **more: object) -> Answer:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_keys_at_a_url_come_change_and_stay_when_the_url_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.AUTH_JWKS_RETRY_S", 0.01)
    monkeypatch.setattr("headwater.limits.AUTH_JWKS_REFRESH_S", 0.02)
    good = [Answer(200, {}, jwks(jwk(name, kid=name))) for name in ("EdDSA", "RS256")]
    deep = b'{"keys":[' + b"[" * 100_000
    bad: list[Answer | Exception] = [
        TargetUnreachableError("down"),
        Answer(500, {}, b""),
        Answer(200, {}, b"<html>"),
        Answer(200, {}, deep),
        KeyError("a defect"),
    ]
    client = FakeClient(bad[0], good[0], *bad, good[0], good[1])
    changes: list[tuple[str, ...]] = []

    async def run() -> None:
        keys = RemoteKeys("https://id.example/jwks")
        assert keys.wanted()
        task = asyncio.create_task(keys.keep(client, lambda: changes.append(tuple(key.algorithm for key in keys.keys))))
        async with asyncio.timeout(10):
            while len(changes) < 2:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(run())
    assert changes == [("EdDSA",), ("RS256",)]
    assert client.asked >= 7


def test_unknown_keys_are_asked_for_but_not_often() -> None:
    now_s = [1_000.0]
    client = FakeClient(Answer(200, {}, jwks(jwk("EdDSA", kid="1"))))

    async def run() -> None:
        keys = RemoteKeys("https://id.example/jwks", lambda: now_s[0])
        issuers = {ISS: Issuer(ISS, [AUD], keys)}
        with pytest.raises(OverloadedError):
            verify(signed("EdDSA", {"kid": "1"}), issuers)
        task = asyncio.create_task(keys.keep(client, lambda: None))
        async with asyncio.timeout(10):
            while not keys.keys:
                await asyncio.sleep(0.005)
        assert verify(signed("EdDSA", {"kid": "1"}), issuers).name
        await asyncio.sleep(0.01)
        for _ in range(50):
            with pytest.raises(UnauthorizedError):
                verify(signed("EdDSA", {"kid": "9"}), issuers)
        await asyncio.sleep(0.01)
        assert client.asked == 1
        now_s[0] += 31
        with pytest.raises(OverloadedError):
            verify(signed("EdDSA", {"kid": "9"}), issuers)
        await asyncio.sleep(0.05)
        assert client.asked == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(run())
