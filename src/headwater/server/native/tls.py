"""TLS between a connection and its transport.

`TlsTransport` is the protocol of the transport below it and the transport of the connection above it. asyncio's own TLS
is not sufficient: it reports a connection only after the handshake, so handshakes are not counted; its buffer size does
not include what the transport below has not sent; and it cannot close one side. Here the connection exists from the
first byte, so all its limits apply to the handshake too, and all unsent bytes are counted.

The receive buffer is used twice: for encrypted bytes and, after they were copied to OpenSSL, for decrypted ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from headwater.errors import OptionError
from headwater.server.http import Buffer
from headwater.server.native.connection import Connection
from headwater.server.native.shared import Shared

_PLAIN_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 40\r\n\r\n"
    b"This port accepts https only, not http.\r\n"
)


def load_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Load the TLS context of a server (TLS 1.2 and 1.3). The key may be in the file of the certificate."""
    for path in (certificate, key):
        if path is not None:
            path.read_bytes()  # so that an error names the file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason.replace("_", " ").lower() if error.reason else "not in PEM format"
        pair = f"the certificate {certificate} with the key {key or certificate}"
        raise OptionError(f"{pair} cannot be used: {reason}") from None
    return context


def expiry_s(certificate: Path) -> float:
    """When the first certificate of a chain expires, in seconds since 1970."""
    from cryptography.x509 import load_pem_x509_certificates

    return min(one.not_valid_after_utc.timestamp() for one in load_pem_x509_certificates(certificate.read_bytes()))


def _no_password() -> bytes:
    raise OptionError("the TLS key is encrypted; give one that is not, readable by the server's user only")


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    ENDED = enum.auto()  # nothing more is written; received data is discarded


_HANDSHAKE, _OPEN, _ENDED = _State.HANDSHAKE, _State.OPEN, _State.ENDED


class TlsTransport(asyncio.BufferedProtocol):
    """TLS of one connection: the protocol of its socket, and the transport of the connection over it."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_ending",
        "_eof",
        "_incoming",
        "_outgoing",
        "_raw",
        "_reading",
        "_shared",
        "_state",
        "_tls",
        "_waiting",
    )

    _raw: asyncio.Transport  # from `connection_made` on

    def __init__(self, context: ssl.SSLContext, connection: Connection, shared: Shared) -> None:
        self._connection: Connection | None = connection  # None after connection_lost
        self._shared = shared
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._state = _HANDSHAKE
        self._waiting: list[Buffer] = []  # written during the handshake: the refusal of a full or stopping server
        self._ending = False  # nothing is written after it
        self._reading = True
        self._eof = False  # the connection knows that the client has closed its sending side
        self._deadline: asyncio.TimerHandle | None = None  # of the handshake

    # Called by the transport below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._shared.limits.tls_handshake_s, self.abort)
        if self._connection is not None:
            self._connection.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        connection, self._connection = self._connection, None  # break the reference cycle
        self._state = _ENDED
        if connection is not None:
            connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.received

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _ENDED:
            return
        self._incoming.write(self._shared.received[:nbytes])
        try:
            if self._state is _HANDSHAKE:
                self._shake_hands()
            self._decrypt()
        except ssl.SSLError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The client has closed the connection without a TLS close. A request that was cut off is detected as
        incomplete."""
        return self._state is not _HANDSHAKE and self._tell_eof()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # Reading

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        self._end_deadline()
        self._state = _OPEN
        self._flush()
        self.writelines(self._waiting)
        self._waiting.clear()
        if self._ending:
            self.write_eof()

    def _decrypt(self) -> None:
        """Pass decrypted data to the connection, while it reads. Small records are passed together."""
        more = True
        while more and self._state is _OPEN and self._reading and self._connection is not None:
            size, more = self._decrypted()
            if size:
                self._connection.buffer_updated(size)
        if self._outgoing.pending:  # the response to a key update
            self._flush()

    def _decrypted(self) -> tuple[int, bool]:
        """The size of the data in the receive buffer, and whether there may be more."""
        received, size = self._shared.received, 0
        try:
            while size < len(received):
                read = cast(int, self._tls.read(len(received) - size, received[size:]))  # a size, given a buffer
                if not read:
                    return size, self._ended_by_client(size)
                size += read
        except ssl.SSLWantReadError:
            return size, False
        except ssl.SSLZeroReturnError:
            return size, self._ended_by_client(size)
        return size, True

    def _ended_by_client(self, size: int) -> bool:
        """Handle the end of the client's data. Data before it comes first: then the end is found once more."""
        if not size and not self._tell_eof():
            self.close()
        return bool(size)

    def _resumed(self) -> None:
        try:
            self._decrypt()
        except ssl.SSLError as error:
            self._fail(error)

    def _tell_eof(self) -> bool:
        """Notify the connection that the client has closed its sending side. Returns whether it still writes."""
        if self._connection is None:
            return False
        if not self._eof:
            self._eof = True
            return self._connection.eof_received()
        return self._state is _OPEN

    def _fail(self, error: ssl.SSLError) -> None:
        """Handle bytes that are not TLS or were changed. The client gets a TLS alert and nothing else."""
        if error.reason == "HTTP_REQUEST":
            self._raw.write(_PLAIN_HTTP)
        else:
            self._flush()
        self._state = _ENDED
        self._raw.close()

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Called by the connection: its transport

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, pieces: Iterable[Buffer]) -> None:
        if self._state is _HANDSHAKE:
            self._waiting.extend(pieces)
        elif self._state is _OPEN:
            try:
                for piece in pieces:
                    self._encrypt(piece)
            except ssl.SSLError as error:
                self._fail(error)
                return
            self._flush()

    def _encrypt(self, data: Buffer) -> None:
        size = self._tls.write(data)
        if size < len(data):  # a record holds 16 KiB
            rest = memoryview(data)
            while size < len(data):
                size += self._tls.write(rest[size:])

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Write nothing more. What the client still sends is discarded."""
        self._ending = True
        if self._say_goodbye():
            self._raw.write_eof()

    def close(self) -> None:
        """Close when everything is written. Does not wait for a handshake."""
        self._say_goodbye()
        self._state = _ENDED
        self._raw.close()

    def _say_goodbye(self) -> bool:
        if self._state is not _OPEN:
            return False
        self._state = _ENDED
        with contextlib.suppress(ssl.SSLError):  # it would wait for the client's reply
            self._tls.unwrap()
        self._flush()
        return True

    def abort(self) -> None:
        self._state = _ENDED
        self._raw.abort()

    def pause_reading(self) -> None:
        self._reading = False
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        self._raw.resume_reading()
        if self._state is _OPEN:
            asyncio.get_running_loop().call_soon(self._resumed)  # data that was already received

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)
