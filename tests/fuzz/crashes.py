"""Inputs that once broke a target, each with what it showed."""

from __future__ import annotations

CRASHES: dict[str, tuple[bytes, ...]] = {
    # A problem that is not UTF-8 was a UnicodeDecodeError of the client's.
    "errors": (b'\x01\x90\x00\x00\x00\x00{"type":"\x80","detail":"x"}',),
    # Records behind a checksum that holds, with a text that is not UTF-8: no CorruptJournalError.
    "records": (b"\x91\x91\x9d\xa7created\x01\xa1\xff\xaatext/plain\x01\x01\xc0\xc0\xc2\xc0\x90\xc4\x01x\x00",),
    # A Content-Length of thousands of digits was a ValueError, which the server of the app had to answer.
    "asgi": (b"\x00\x00\x00\x00\n\x00" + b"9" * 5000 + b"\n",),
    # A range of characters that runs backwards was an error of the module re: 500 for the holder of a JWT.
    "scopes": (b"read:[z-a]\nb",),
    "jwts": (b'\x01\n{"scope":"read:[z-a]"}\n',),
    # Arrays in arrays were a RecursionError, in which a reload of the file ended.
    "auth_files": (b'anonymous = ["read:[z-a]"]', b"a = " + b"[" * 2000),
    "settings": (b"\x00a = " + b"[" * 2000,),
    # White space that str.strip removes and int does not take: STP-Fork-SeqNo was answered with 500.
    "header_values": (b"\n%0\x1d",),
    # Stream-TTL of a hostile server: digits that are no ASCII, and too many of them. A list that is not UTF-8.
    "answers": (
        b"\x00\x01\x04\xb2\n\x00\n" * 3,
        b"\x00\x01\x04" + b"9" * 5000 + b"\n\x00\n",
        b'\x04\x00\x00{"streams":[{"path":"\xff"}]}\n' * 3,
    ),
}
