"""The Huffman code of HPACK (RFC 7541, appendix B).

The code is canonical: the lengths of the codes determine the codes. The decoder takes whole bytes.
It computes each step from a state and a byte once and then remembers it; real header fields use
few of the 65,536 possible steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.protocol.http2.violations import Http2Error, violation

#: Symbols by the length of their code in bits, without the end-of-string symbol.
_SYMBOLS_BY_BITS: dict[int, bytes] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: bytes.fromhex("818485868892 9a9ca0a3a4a9 aaadb2b5b9ba bbbdbec4c6e4 e8e9"),
    23: bytes.fromhex("0187898a8b8c 8d8f93959697 989b9d9ea5a6 a8aeafb4b6b7 bcbfc5e7ef"),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: bytes.fromhex("c0c1c8c9cacd d2d5dadbeef0 f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dd dedff1f4f5f6 f7f8fafbfcfd fe"),
    28: bytes.fromhex("020304050607 080b0c0e0f10 111213141517 18191a1b1c1d 1e1f7fdcf9"),
    30: b"\n\r\x16",
}
_END_OF_STRING = 256
_END_BITS = 30
#: A partial code is held with a leading 1, so that its length is known.
_START = 1
#: Valid states at the end of a string: nothing, or up to 7 bits of the end-of-string symbol.
_PADDING = frozenset((1 << bits) - 1 << 8 for bits in range(1, 9))
#: Remembered steps; above this they are forgotten, so that no peer can fill the memory.
STEPS_MAX = 16_384


def _codes() -> Iterator[tuple[int, int, int]]:
    """Yield each symbol with its code and the code's length in bits."""
    code = bits_before = 0
    for bits, symbols in _SYMBOLS_BY_BITS.items():
        code <<= bits - bits_before
        bits_before = bits
        for symbol in sorted(symbols):
            yield symbol, code, bits
            code += 1
    yield _END_OF_STRING, code, _END_BITS


_SYMBOLS = {1 << bits | code: symbol for symbol, code, bits in _codes()}
_steps: dict[int, tuple[int, bytes]] = {}


def decode_huffman(data: bytes) -> bytes:
    """Return the decoded string."""
    state = _START << 8
    pieces = []
    for byte in data:
        step = _steps.get(state | byte)
        if step is None:
            step = _make_step(state, byte)
        state, piece = step
        pieces.append(piece)
    if state not in _PADDING:
        raise violation(Http2Error.COMPRESSION_ERROR, "a Huffman code is incomplete")
    return b"".join(pieces)


def _make_step(state: int, byte: int) -> tuple[int, bytes]:
    """Return the state after eight more bits, and the symbols that they complete."""
    partial = state >> 8
    found = bytearray()
    for shift in range(7, -1, -1):
        partial = partial << 1 | byte >> shift & 1
        symbol = _SYMBOLS.get(partial)
        if symbol == _END_OF_STRING:
            raise violation(Http2Error.COMPRESSION_ERROR, "a string contains its end")
        if symbol is not None:
            found.append(symbol)
            partial = _START
    if len(_steps) >= STEPS_MAX:
        _steps.clear()
    step = _steps[state | byte] = partial << 8, bytes(found)
    return step
