"""JSON arrays, split into the texts of their elements."""

from __future__ import annotations

import msgspec

_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def split_array(text: bytes | bytearray | str) -> list[msgspec.Raw]:
    """The elements of a JSON array, as they were written.

    The array is validated, apart from the UTF-8 inside strings: check that separately where it matters. Raises
    msgspec.DecodeError for text that is not a JSON array, and RecursionError for one that is nested too deeply.
    """
    return _decoder.decode(text)
