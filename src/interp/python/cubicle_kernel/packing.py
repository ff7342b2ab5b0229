"""Jupyter messages to bytes and back: with functions bound at start, so that user code that patches json cannot cut the kernel off,
and always valid UTF-8, which the reader insists on."""

import json

from jupyter_client.jsonutil import json_clean, json_default

_encode = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False).encode
_decode = json.JSONDecoder().decode


def _utf8(text):
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Halves of surrogate pairs are joined, lone ones (file names that are not UTF-8, say) become U+FFFD.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def pack(message):
    """Returns one message part as JSON; what JSON cannot hold (NaN, odd keys) is cleaned as jupyter_client does."""
    try:
        return _utf8(_encode(message))
    except (TypeError, ValueError):
        return _utf8(_encode(json_clean(message)))


def unpack(data):
    """Returns what one message part holds."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        data = bytes(data).decode("utf8", "replace")
    return _decode(data)
