"""Objects of equal machine code have one hash, whatever their kernels are called; others never."""

from __future__ import annotations

import pytest

from boards.board import load
from boards.target import Target
from cross.compile import compile_object
from cross.inspection.fingerprint import code_hash
from cross.loopnest.nodes import LoopNest
from tests.nests import elementwise, matmul

HOST = load("host").target()
A53 = load("rpi3b").target()


def hashed(symbol: str, nest: LoopNest, target: Target) -> str:
    return code_hash(compile_object(symbol, nest, target), symbol)


@pytest.mark.parametrize("target", [HOST, A53], ids=["host", "aarch64"])
def test_the_name_does_not_count(target: Target) -> None:
    for nest in (elementwise("exp", 16, 8), matmul(16, 16, 8, 4, 8)):
        names = ("tfb_0000000000000000", "tfb_ffffffffffffffff", "zz", ".a_much_longer_name_than_the_others")
        objects = {compile_object(name, nest, target) for name in names}
        assert len(objects) == len(names)
        assert len({hashed(name, nest, target) for name in names}) == 1


@pytest.mark.parametrize("target", [HOST, A53], ids=["host", "aarch64"])
def test_different_code_has_different_hashes(target: Target) -> None:
    nests = [elementwise(name, 16, 8) for name in ("exp", "tanh", "sqrt")]
    nests += [elementwise("exp", 32, 8)]
    nests += [matmul(16, 16, size, rows, 8) for size in (8, 16) for rows in (1, 2, 4)]
    hashes = [hashed("kernel", nest, target) for nest in nests]
    assert len(set(hashes)) == len(nests)


def test_every_loaded_byte_counts() -> None:
    code = compile_object("kernel", matmul(16, 16, 8, 4, 8), HOST)
    known = code_hash(code, "kernel")
    text = code.index(bytes.fromhex("c3"), 64)  # a return
    changed = code[:text] + b"\x90" + code[text + 1 :]
    assert code_hash(changed, "kernel") != known
