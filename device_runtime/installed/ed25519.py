"""Ed25519 signature check (RFC 8032, section 5.1.7) in plain Python, for boards without OpenSSH.

Verification handles public data only, so nothing here needs to be constant-time. It is strict: the scalar S
must be below the group order, and point encodings must be canonical, so no second signature fits a message.
"""

import hashlib
from typing import Optional, Tuple

Point = Tuple[int, int, int, int]
"""A curve point in extended homogeneous coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z."""

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)
NEUTRAL = (0, 1, 1, 0)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """True when `signature` (64 bytes) over `message` was made by the holder of `public_key` (32 bytes)."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    point = decode(public_key)
    scalar = int.from_bytes(signature[32:], "little")
    if point is None or scalar >= ORDER:
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % ORDER
    minus = (P - point[0], point[1], point[2], P - point[3])
    return encode(double_multiply(scalar, BASE, challenge, minus)) == signature[:32]


def add(a: Point, b: Point) -> Point:
    """Sum of two points (RFC 8032, section 5.1.4; complete, so it doubles as well)."""
    t0 = (a[1] - a[0]) * (b[1] - b[0]) % P
    t1 = (a[1] + a[0]) * (b[1] + b[0]) % P
    t2 = 2 * a[3] * b[3] * D % P
    t3 = 2 * a[2] * b[2] % P
    e, f, g, h = t1 - t0, t3 - t2, t3 + t2, t1 + t0
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def double_multiply(m: int, a: Point, n: int, b: Point) -> Point:
    """m*a + n*b, both scalars walked through together."""
    both = add(a, b)
    result = NEUTRAL
    for bit in range(max(m.bit_length(), n.bit_length()) - 1, -1, -1):
        result = add(result, result)
        pick = (m >> bit & 1, n >> bit & 1)
        if pick == (1, 1):
            result = add(result, both)
        elif pick == (1, 0):
            result = add(result, a)
        elif pick == (0, 1):
            result = add(result, b)
    return result


def encode(point: Point) -> bytes:
    """The 32-byte form of a point: y, with the lowest bit of x on top."""
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Optional[Point]:
    """The point with this 32-byte form; None when there is none or the form is not canonical."""
    y = int.from_bytes(data, "little")
    sign = y >> 255
    y &= 2**255 - 1
    if y >= P:
        return None
    numerator, denominator = (y * y - 1) % P, (D * y * y + 1) % P
    square = numerator * pow(denominator, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * SQRT_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return (x, y, 1, x * y % P)


def _base() -> Point:
    point = decode((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    assert point is not None
    return point


BASE = _base()
