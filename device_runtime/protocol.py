"""Messages between host and board: the one file of the runtime that the host imports (frames, entries and the
module format of GPU targets come with it).

    host -> board   {"id": n, "method": "measure", "params": {...}, "buffers": [sizes]}
    board -> host   {"id": n, "result": {...}, "buffers": [sizes]}
                 or {"id": n, "error": {"code": "busy", "text": "...", "details": {...}}, "buffers": []}

The board speaks first: a frame {"greeting": {...}} with its PROTOCOL_VERSION. One request is open at a
time. A received map becomes a message by `from_plain` of its class, which checks every entry, and goes out by
`to_plain`; ProtocolError names the entry, what was expected and what was found.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional, Tuple

from device_runtime.wire import sshsig
from device_runtime.wire.entries import (
    IDENTIFIER,
    SHA256,
    Message,
    Rule,
    between,
    checked,
    entry,
    one_of,
    take,
    take_sha,
    to_plain,
    unexpected,
)
from device_runtime.wire.frames import (
    BAD_FRAME,
    BAD_HASH,
    BAD_REQUEST,
    BAD_VERSION,
    BUSY,
    DEADLINE,
    FAILED,
    FRAME_DEADLINE_S,
    MAX_BUFFERS,
    NO_LEASE,
    NO_SPACE,
    NOT_ALLOWED,
    NOT_FOUND,
    REFUSED,
    UNKNOWN_METHOD,
    UNTRUSTED,
    Buffer,
    Connection,
    Frame,
    FrameDecoder,
    ProtocolError,
    Stream,
    encode_frame,
)
from device_runtime.wire.gpu_model_file import (
    GPU_ALIGNMENT,
    GpuBuffer,
    GpuCall,
    GpuChoice,
    GpuCopy,
    GpuLoop,
    GpuModel,
    GpuStep,
)
from device_runtime.wire.gpu_module import LANGUAGES, WORKSPACE, GpuKernel, GpuModule, Launch, merged
from device_runtime.wire.streams import DescriptorStream
from device_runtime.wire.tls import HEADLINE, TRUSTS, Credentials, TlsStream, read_credentials

PROTOCOL_VERSION = 6
RUNTIME_VERSION = "0.1.0"
CHUNK_BYTES = 1 << 20  # of one `put` or `read`

# Hard caps of a measurement; the board enforces them whatever the host asks for.
MAX_NUMBER = 10_000_000
MAX_REPEAT = 1_000
MAX_WARMUP = 1_000
MAX_MIN_REPEAT_MS = 10_000.0
MAX_COOLDOWN_S = 60.0
MAX_TIMEOUT_S = 600.0
MAX_DEVICE_S = 1e6
MAX_FLUSH_BYTES = 1 << 28
MAX_BUFFER_BYTES = 1 << 32
MAX_THREADS = 256
MAX_DATA_SETS = 96  # of which an object holds one or several
MAX_STEPS = 65536

DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
}
HALF_FLOATS = ("bfloat16", "float16")
UNWRITTEN_FLOAT, UNWRITTEN_INTEGER = 0xFF, 0xA5  # bytes of a NaN, and of an unlikely number
DRIVERS = ("cpu", *LANGUAGES)
CORE_ID = between(0, 4095)
FACTS = {  # of MeasureResult.facts, beside `cores`: type, and range
    "clock_hz": (int, 0, 1e12),
    "governor": (str, 0, 0),
    "temperature_c": (float, -1e9, 1e9),  # a sensor that is not there may say anything
}
FAILURE_KINDS = (
    "build", "link", "launch", "timeout", "crash", "wrong_answer", "out_of_memory", "transport",
)  # fmt: skip


def unwritten_byte(dtype: str) -> int:
    """What every byte of an output is before a kernel that is checked runs, and must be afterwards where the
    kernel has nothing to write."""
    return UNWRITTEN_FLOAT if "float" in dtype else UNWRITTEN_INTEGER


@dataclass(frozen=True)
class Greeting(Message):
    """The board's first words, to a host that it knows by then."""

    protocol: int
    runtime: str
    python: str
    machine: str
    pid: int

    @classmethod
    def from_plain(cls, plain: object) -> "Greeting":
        """Check the version first: another version may have other entries."""
        version = plain.get("protocol") if isinstance(plain, dict) else None
        if version != PROTOCOL_VERSION:
            raise ProtocolError(
                BAD_VERSION, f"the board speaks protocol {version!r:.40}, this host {PROTOCOL_VERSION}"
            )
        return super().from_plain(plain)


@dataclass(frozen=True)
class BufferRequest(Message):
    """One kernel argument: `sha` names an input's data, or an output's expected data ("": not checked).

    With `bounds` the expected data of an output are the least numbers that are right, and then the largest
    ones; half floats have none.
    """

    role: str = entry(one_of(("input", "output")))
    dtype: str = entry(one_of(tuple(DTYPE_BYTES)))
    elements: int = entry(between(0, MAX_BUFFER_BYTES))
    sha: str = ""
    bounds: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer, without alignment."""
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def data_bytes(self) -> int:
        """Bytes of what it holds, or what is expected of it, in one data set."""
        return self.size_bytes * (2 if self.bounds else 1)

    @classmethod
    def from_plain(cls, plain: object) -> "BufferRequest":
        """See Message; only an output may have no `sha`."""
        found = super().from_plain(plain)
        if found.size_bytes > MAX_BUFFER_BYTES:
            raise unexpected("'elements'", f"at most {MAX_BUFFER_BYTES} bytes of them", found.elements)
        if found.sha or found.role == "input":
            checked(found.sha, str, SHA256, "'sha'")
        if found.bounds and (found.role == "input" or found.dtype in HALF_FLOATS):
            raise unexpected(
                "'bounds'", "them for outputs, not of half floats", f"{found.role} {found.dtype}"
            )
        return found


@dataclass(frozen=True)
class Timing(Message):
    """How often a kernel runs: `repeat` times `number` calls, `number` doubling (at most to `max_number`)
    until one repeat lasts `min_repeat_ms`; over once every call took longer than `give_up_s` (0: never) for
    30 `min_repeat_ms`. Where the fastest repeats agree (repeats.py), `few` (0: all) are enough, and AGREEING
    for a kernel that takes longer than `slow_s` (0: for none)."""

    number: int = entry(between(1, MAX_NUMBER), default=1)
    repeat: int = entry(between(1, MAX_REPEAT), default=3)
    min_repeat_ms: float = entry(between(0, MAX_MIN_REPEAT_MS), default=10.0)
    max_number: int = entry(between(1, MAX_NUMBER), default=100_000)
    warmup: int = entry(between(0, MAX_WARMUP), default=1)
    cooldown_s: float = entry(between(0, MAX_COOLDOWN_S), default=0.0)
    give_up_s: float = entry(between(0, MAX_TIMEOUT_S), default=0.0)
    flush_bytes: int = entry(between(0, MAX_FLUSH_BYTES), default=0)
    few: int = entry(between(0, MAX_REPEAT), default=0)
    slow_s: float = entry(between(0, MAX_TIMEOUT_S), default=0.0)

    @classmethod
    def from_plain(cls, plain: object) -> "Timing":
        """See Message."""
        found = super().from_plain(plain)
        checked(found.max_number, int, between(found.number, MAX_NUMBER), "'max_number'")
        return found


@dataclass(frozen=True)
class MeasureRequest(Message):
    """Check and time one kernel of the shared object or GpuModule `module`. `timing` None: check only.

    `driver` loads the module; `device` is a part of its device's or platform's name ("": the first GPU).
    `cores` are the ids to pin to (empty: none); a kernel is right when no element that should be finite is
    not, and max |error| <= rtol * max |expected|. That holds for the data of `buffers`, on which it is timed,
    and for all of `more_data`: further sets, each the `sha` of every buffer ("" where `buffers` has none). An
    object of n times its buffer's size stands for n sets, as those beside it do, or hold what all n share.
    With `step_runs` a CPU's model runs that often once more, and says how long each of its steps took.
    """

    module: str = entry(SHA256)
    symbol: str = entry(IDENTIFIER)
    buffers: Tuple[BufferRequest, ...] = entry(least=1, most=MAX_BUFFERS)
    workspace_bytes: int = entry(between(0, MAX_BUFFER_BYTES), default=0)
    timing: Optional[Timing] = None
    threads: int = entry(between(1, MAX_THREADS), default=1)
    cores: Tuple[int, ...] = entry(CORE_ID, default=(), most=MAX_THREADS)
    timeout_s: float = entry(between(0.001, MAX_TIMEOUT_S), default=10.0)
    rtol: float = entry(between(0, 1), default=1e-4)
    driver: str = entry(one_of(DRIVERS), default="cpu")
    device: str = entry(Rule(lambda name: len(name) <= 200, "at most 200 characters"), default="")
    more_data: Tuple[Tuple[str, ...], ...] = entry(default=(), most=MAX_BUFFERS)
    step_runs: int = entry(between(0, MAX_REPEAT), default=0)

    @property
    def data_sets(self) -> Tuple[Tuple[str, ...], ...]:
        """All sets, the timed one first."""
        return (tuple(buffer.sha for buffer in self.buffers), *self.more_data)

    @classmethod
    def from_plain(cls, plain: object) -> "MeasureRequest":
        """See Message; every set has an object for each buffer that has one in the timed set."""
        found = super().from_plain(plain)
        sizes = {len(found.buffers), *map(len, found.more_data)}
        if len(found.more_data) > MAX_DATA_SETS or len(sizes) > 1:
            expected = f"at most {MAX_DATA_SETS} lists of {len(found.buffers)} objects"
            raise unexpected("'more_data'", expected, found.more_data)
        sets = tuple(
            tuple(
                checked(sha, str, SHA256, "'more_data'") if buffer.sha else ""
                for buffer, sha in zip(found.buffers, data)
            )
            for data in found.more_data
        )
        return replace(found, more_data=sets)


@dataclass(frozen=True)
class MeasureFailure(Message):
    """Why there is no number; `signal` is what killed the child, if one did."""

    kind: str = entry(one_of(FAILURE_KINDS))
    text: str = entry()
    signal: Optional[int] = entry(between(1, 128), default=None)


@dataclass(frozen=True)
class MeasureResult(Message):
    """`seconds` per call, one entry a repeat, each the mean of `number` calls; empty after a failure or when
    only checked. `step_s` are the median seconds of each step of a model, in the order of its plan; empty
    where they were not asked for, or are not known. `device_s` is how long the board was busy with it,
    `cpu_s` the CPU time of all threads of the process that called a CPU's kernel; `facts` are `cores` and
    some of FACTS."""

    seconds: Tuple[float, ...] = entry(
        Rule(lambda value: 0 < value <= MAX_TIMEOUT_S, "positive times"), default=(), most=MAX_REPEAT
    )
    number: int = entry(between(0, MAX_NUMBER), default=0)
    error: Optional[MeasureFailure] = None
    max_abs_error: float = entry(between(0), default=0.0)
    max_abs_reference: float = entry(between(0), default=0.0)
    facts: Dict[str, Any] = field(default_factory=dict)
    device_s: float = entry(between(0, MAX_DEVICE_S), default=0.0)
    step_s: Tuple[float, ...] = entry(between(0, MAX_TIMEOUT_S), default=(), most=MAX_STEPS)
    cpu_s: float = entry(between(0, MAX_DEVICE_S), default=0.0)

    @classmethod
    def from_plain(cls, plain: object) -> "MeasureResult":
        """See Message; of the facts those are kept that are known here."""
        result = super().from_plain(plain)
        found = result.facts
        facts = {name: take(found, name, *bounds) for name, bounds in FACTS.items() if name in found}
        if "cores" in found:
            facts["cores"] = [checked(core, int, CORE_ID, "'cores'") for core in take(found, "cores", list)]
        return replace(result, facts=facts)


def permission_text(bundle_id: str, nonce: str) -> bytes:
    """What a trusted signer signs to permit an older bundle; `nonce` is the connection's, from `slots`."""
    return f"allow-downgrade {bundle_id} {nonce}\n".encode()
