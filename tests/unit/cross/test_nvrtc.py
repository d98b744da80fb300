"""Cubins for every architecture that boards may name, and what is said where NVRTC is missing or refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import pytest

from boards.board import load
from cross import nvrtc
from cross.compile import compile
from cross.errors import CompileError
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.loopnest import LoopNest, Programs
from cross.nvrtc import NvrtcMissing, compile_cubin, usage
from cross.schedule.choose import space_of
from device_runtime.protocol import GpuModule

NAMED = ("52", "53", "60", "61", "62", "70", "72", "75", "80", "87", "89", "90")
JETSON = load("jetson-nano").target("gpu")
FLAGS_AT = 48  # e_flags of a 64-bit ELF header; its lowest byte is the architecture's number


def matmul() -> LoopNest:
    """A matrix product whose operands' tiles are in shared memory."""
    a, b = placeholder((64, 32), "A"), placeholder((32, 64), "B")
    space = space_of(Operator("matmul", (a, b), dense(a, b, "matmul")), JETSON)
    return Programs(space).nest(space.parse(space.describe(space.default()) | {"shared": [0]}))


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        nvrtc, "LIBRARIES", {"libnvrtc-is-not-here.so.12": "nowhere", "nor-here.so.13": "nowhere"}
    )
    nvrtc._library.cache_clear()
    yield
    nvrtc._library.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("number", NAMED)
def test_a_kernel_compiles_for_every_architecture(number: str) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    assert JETSON.gpu is not None
    limits = msgspec.structs.replace(JETSON.gpu, compute_capability=f"sm_{number}")
    target = msgspec.structs.replace(JETSON, gpu=limits)
    code = GpuModule.from_bytes(compile([("matmul_0", matmul())], target).code).kernels["matmul_0"].code
    assert isinstance(code, bytes)
    assert struct.unpack_from("<I", code, FLAGS_AT)[0] & 0xFF == int(number)
    (used,) = usage(code).values()
    assert 0 < used.registers <= 255
    assert used.shared_bytes >= 4 * (8 * 64 + 8 * 32)  # one step of both operands
    assert used.local_bytes == 0


def test_without_nvrtc_the_message_says_what_to_install(without_nvrtc: None) -> None:
    with pytest.raises(NvrtcMissing) as raised:
        compile([("matmul_0", matmul())], JETSON)
    assert str(raised.value) == (
        "compiling for CUDA needs NVRTC (libnvrtc-is-not-here.so.12 or nor-here.so.13), which is not "
        "installed; install the extra [cuda]: pip install 'tune-for-board[cuda]'; on a host without CUDA, "
        "where pycuda cannot be built, its wheel alone: pip install nvidia-cuda-nvrtc-cu12"
    )


def test_a_later_nvrtc_serves_where_the_first_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    later = {"libnvrtc-is-not-here.so.11": "nowhere", "libnvrtc.so.12": "nvidia.cuda_nvrtc"}
    monkeypatch.setattr(nvrtc, "LIBRARIES", later)
    nvrtc._library.cache_clear()
    assert compile_cubin('extern "C" __global__ void k(float *y) { *y = 1; }', "sm_53")
    nvrtc._library.cache_clear()


def test_an_architecture_that_this_nvrtc_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    monkeypatch.setattr(nvrtc, "ARCHITECTURES", ("sm_35",))  # left out by CUDA 12, as sm_53 by CUDA 13
    with pytest.raises(CompileError, match=r"(?s)this NVRTC does not compile for sm_35: .*nvrtc-cu12$"):
        compile_cubin("", "sm_35")


def test_an_unknown_architecture_is_refused_before_anything_is_loaded(without_nvrtc: None) -> None:
    with pytest.raises(
        CompileError, match=r"^CUDA architecture 'sm_35': expected one of sm_50, .*board file"
    ):
        compile_cubin("", "sm_35")


def test_what_nvrtc_refuses_comes_with_its_text() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    with pytest.raises(CompileError, match=r'(?s)NVRTC refuses the code for sm_53: .*"nothing" is undefined'):
        compile_cubin('extern "C" __global__ void k(float *y) { *y = nothing; }', "sm_53")


def test_only_a_cubin_is_read() -> None:
    with pytest.raises(CompileError, match="expected a cubin, a 64-bit ELF file"):
        usage(b"not a cubin")
