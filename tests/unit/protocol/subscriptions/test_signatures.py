"""Signatures of webhooks: vectors of RFC 8032 and RFC 8037, and what is refused."""

from __future__ import annotations

import base64

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UnknownSigningKeyError, WebhookSignatureError
from headwater.limits import WEBHOOK_KEYS_MAX
from headwater.protocol.subscriptions.signatures import (
    format_jwks,
    key_id,
    parse_jwks,
    parse_signature,
    public_jwk,
    sign_webhook,
    verify_webhook,
)

# The key of RFC 8037, appendix A, and its thumbprint there.
PRIVATE_KEY = Ed25519PrivateKey.from_private_bytes(
    base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
)
PUBLIC_KEY = PRIVATE_KEY.public_key()
X = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
KEY_ID = "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
KEYS = {KEY_ID: PUBLIC_KEY}
BODY = b'{"subscription_id":"s"}'
NOW_S = 1_778_324_210


def test_a_key_id_is_the_thumbprint_of_rfc_8037() -> None:
    assert key_id(PUBLIC_KEY) == KEY_ID
    assert public_jwk(PUBLIC_KEY) == {
        "kty": "OKP",
        "crv": "Ed25519",
        "kid": KEY_ID,
        "use": "sig",
        "alg": "EdDSA",
        "x": X,
    }


def test_a_signature_is_over_the_time_and_the_body() -> None:
    header = sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY)
    timestamp, key, signature = parse_signature(header)
    assert (timestamp, key) == (str(NOW_S), KEY_ID)
    PUBLIC_KEY.verify(signature, b"1778324210." + BODY)
    assert header.startswith(f"t={NOW_S},kid={KEY_ID},ed25519=")
    assert not header.endswith("=")
    verify_webhook(header, BODY, KEYS, NOW_S)


@given(st.binary(max_size=100), st.integers(0, 10**12 - 1))
def test_what_is_signed_is_verified(body: bytes, timestamp_s: int) -> None:
    verify_webhook(sign_webhook(PRIVATE_KEY, KEY_ID, timestamp_s, body), body, KEYS, timestamp_s)


def test_members_may_come_in_any_order_and_others_are_ignored() -> None:
    members = sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY).split(",")
    verify_webhook(", ".join(["v2=x", *reversed(members)]), BODY, KEYS, NOW_S)


@pytest.mark.parametrize("seconds", [-300, 0, 300])
def test_a_signature_is_valid_for_five_minutes(seconds: int) -> None:
    verify_webhook(sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY), BODY, KEYS, NOW_S + seconds)


@pytest.mark.parametrize(("seconds", "message"), [(301, "301 s old"), (-301, "301 s ahead of this clock")])
def test_an_old_or_future_signature_is_refused(seconds: int, message: str) -> None:
    header = sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY)
    with pytest.raises(WebhookSignatureError, match=message):
        verify_webhook(header, BODY, KEYS, NOW_S + seconds)


def test_a_changed_body_or_time_is_refused() -> None:
    header = sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY)
    with pytest.raises(WebhookSignatureError, match="does not match the body"):
        verify_webhook(header, BODY + b" ", KEYS, NOW_S)
    with pytest.raises(WebhookSignatureError, match="does not match the body"):
        verify_webhook(header.replace(str(NOW_S), str(NOW_S + 1)), BODY, KEYS, NOW_S)


def test_a_key_that_is_not_among_the_keys_is_named() -> None:
    other = Ed25519PrivateKey.generate()
    header = sign_webhook(other, key_id(other.public_key()), NOW_S, BODY)
    with pytest.raises(UnknownSigningKeyError, match="no key with the id 'ds_"):
        verify_webhook(header, BODY, KEYS, NOW_S)
    with pytest.raises(WebhookSignatureError, match="does not match"):  # another key under this id
        verify_webhook(sign_webhook(other, KEY_ID, NOW_S, BODY), BODY, KEYS, NOW_S)


SIGNATURE = sign_webhook(PRIVATE_KEY, KEY_ID, NOW_S, BODY).rpartition("=")[2]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t",
        f"kid={KEY_ID},ed25519={SIGNATURE}",
        f"t=,kid={KEY_ID},ed25519={SIGNATURE}",
        f"t=-1,kid={KEY_ID},ed25519={SIGNATURE}",
        f"t=1.0,kid={KEY_ID},ed25519={SIGNATURE}",
        f"t=١,kid={KEY_ID},ed25519={SIGNATURE}",
        f"t={'9' * 13},kid={KEY_ID},ed25519={SIGNATURE}",
        f"t={NOW_S},ed25519={SIGNATURE}",
        f"t={NOW_S},kid=a b,ed25519={SIGNATURE}",
        f"t={NOW_S},kid={KEY_ID}",
        f"t={NOW_S},kid={KEY_ID},ed25519=",
        f"t={NOW_S},kid={KEY_ID},ed25519={SIGNATURE}==",
        f"t={NOW_S},kid={KEY_ID},ed25519={SIGNATURE[:-1]}",
        f"t={NOW_S},kid={KEY_ID},ed25519={SIGNATURE}A",
        f"t={NOW_S},kid={KEY_ID},ed25519=+{SIGNATURE[1:]}",
        f"t={NOW_S},t={NOW_S},kid={KEY_ID},ed25519={SIGNATURE}",
        f"t={NOW_S},kid={KEY_ID},ed25519={SIGNATURE},{'x' * 2000}",
    ],
)
def test_an_invalid_header_is_refused(header: str) -> None:
    with pytest.raises(WebhookSignatureError):
        verify_webhook(header, BODY, KEYS, NOW_S)


def test_a_signature_has_one_text() -> None:
    """The last character has unused bits. Other texts of the same bytes are refused."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = SIGNATURE[:-1] + alphabet[alphabet.index(SIGNATURE[-1]) + 1]
    with pytest.raises(WebhookSignatureError, match="no valid ed25519"):
        verify_webhook(f"t={NOW_S},kid={KEY_ID},ed25519={other}", BODY, KEYS, NOW_S)


@given(st.text())
def test_any_text_is_refused_with_one_error(header: str) -> None:
    with pytest.raises(WebhookSignatureError):
        verify_webhook(header, BODY, KEYS, NOW_S)


@pytest.mark.parametrize("name", ["", "a,b", "a b", "ä", "a\nb"])
def test_a_key_id_that_the_header_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        sign_webhook(PRIVATE_KEY, name, NOW_S, BODY)


def jwks(*keys: object) -> bytes:
    return msgspec.json.encode({"keys": keys})


def test_a_jwk_set_is_read_and_written() -> None:
    other = Ed25519PrivateKey.generate().public_key()
    keys = parse_jwks(format_jwks([PUBLIC_KEY, other]))
    assert {name: key.public_bytes_raw() for name, key in keys.items()} == {
        KEY_ID: PUBLIC_KEY.public_bytes_raw(),
        key_id(other): other.public_bytes_raw(),
    }
    assert parse_jwks(jwks()) == {}


def test_keys_for_other_uses_are_ignored() -> None:
    jwk = public_jwk(PUBLIC_KEY)
    others = [{**jwk, "use": "enc"}, {**jwk, "crv": "X25519"}, {**jwk, "alg": "x"}]
    assert list(parse_jwks(jwks({"kty": "RSA", "n": "x", "e": "AQAB"}, *others, jwk))) == [KEY_ID]
    assert list(parse_jwks(jwks({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": X}))) == ["k"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": [1]}',
        b'{"keys": [{}]}',
        b"\xff",
        b"[" * 100_000,
        jwks(public_jwk(PUBLIC_KEY), public_jwk(PUBLIC_KEY)),
        jwks({**public_jwk(PUBLIC_KEY), "kid": ""}),
        jwks({**public_jwk(PUBLIC_KEY), "x": X[:-2]}),
        jwks({**public_jwk(PUBLIC_KEY), "x": X + "="}),
        jwks(*[{"kty": "RSA"}] * (WEBHOOK_KEYS_MAX + 1)),
    ],
)
def test_an_invalid_jwk_set_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="JWK Set"):
        parse_jwks(body)
