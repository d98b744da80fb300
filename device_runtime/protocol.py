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

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from device_runtime.wire import sshsig
from device_runtime.wire.entries import (
    known_keys,
    take,
    take_choice,
    take_sha,
    take_symbol,
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
    INTERNAL,
    MAX_BUFFERS,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    NO_LEASE,
    NO_SPACE,
    NOT_ALLOWED,
    NOT_FOUND,
    REFUSED,
    TOO_LARGE,
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
from device_runtime.wire.gpu_model_file import GPU_ALIGNMENT, GPU_MODEL_VERSION, GpuBuffer, GpuModel, GpuStep
from device_runtime.wire.gpu_module import (
    GPU_MODULE_VERSION,
    LANGUAGES,
    WORKSPACE,
    GpuKernel,
    GpuModule,
    Launch,
    merged,
)
from device_runtime.wire.streams import DescriptorStream
from device_runtime.wire.tls import HEADLINE, TRUSTS, Credentials, TlsStream, read_credentials

PROTOCOL_VERSION = 2
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
MAX_DATA_SETS = 8

DTYPE_BYTES = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
DRIVERS = ("cpu", *LANGUAGES)
FACTS = {  # of MeasureResult.facts, beside `cores`: type, and range
    "clock_hz": (int, 0, 1e12),
    "governor": (str, 0, 0),
    "temperature_c": (float, -1e9, 1e9),  # a sensor that is not there may say anything
}
FAILURE_KINDS = (
    "build", "link", "launch", "timeout", "crash", "wrong_answer", "out_of_memory", "transport",
)  # fmt: skip


@dataclass(frozen=True)
class Greeting:
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
        known = known_keys(plain, cls)
        return cls(
            protocol=PROTOCOL_VERSION,
            runtime=take(known, "runtime", str),
            python=take(known, "python", str),
            machine=take(known, "machine", str),
            pid=take(known, "pid", int),
        )


@dataclass(frozen=True)
class BufferRequest:
    """One kernel argument: `sha` names an input's data, or an output's expected data ("": not checked)."""

    role: str  # "input" | "output"
    dtype: str
    elements: int
    sha: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer, without alignment."""
        return self.elements * DTYPE_BYTES[self.dtype]

    @classmethod
    def from_plain(cls, plain: object) -> "BufferRequest":
        """Checked copy of a received map."""
        known = known_keys(plain, cls)
        role = take_choice(known, "role", ("input", "output"))
        dtype = take_choice(known, "dtype", tuple(DTYPE_BYTES))
        elements = take(known, "elements", int, 1, MAX_BUFFER_BYTES // DTYPE_BYTES[dtype])
        unchecked = role == "output" and known.get("sha") == ""
        return cls(role, dtype, elements, "" if unchecked else take_sha(known, "sha"))


@dataclass(frozen=True)
class Timing:
    """How often a kernel runs: `repeat` times `number` calls, `number` doubling (at most to `max_number`)
    until one repeat lasts `min_repeat_ms`; over once every call took longer than `give_up_s` (0: never) for
    30 `min_repeat_ms`."""

    number: int = 1
    repeat: int = 3
    min_repeat_ms: float = 10.0
    max_number: int = 100_000
    warmup: int = 1
    cooldown_s: float = 0.0
    give_up_s: float = 0.0
    flush_bytes: int = 0

    @classmethod
    def from_plain(cls, plain: object) -> "Timing":
        """Checked copy of a received map."""
        known = known_keys(plain, cls)
        number = take(known, "number", int, 1, MAX_NUMBER)
        return cls(
            number=number,
            repeat=take(known, "repeat", int, 1, MAX_REPEAT),
            min_repeat_ms=take(known, "min_repeat_ms", float, 0, MAX_MIN_REPEAT_MS),
            max_number=take(known, "max_number", int, number, MAX_NUMBER),
            warmup=take(known, "warmup", int, 0, MAX_WARMUP),
            cooldown_s=take(known, "cooldown_s", float, 0, MAX_COOLDOWN_S),
            give_up_s=take(known, "give_up_s", float, 0, MAX_TIMEOUT_S),
            flush_bytes=take(known, "flush_bytes", int, 0, MAX_FLUSH_BYTES),
        )


@dataclass(frozen=True)
class MeasureRequest:
    """Check and time one kernel of the shared object or GpuModule `module`. `timing` None: check only.

    `driver` loads the module; `device` is a part of its device's or platform's name ("": the first GPU).
    `cores` are the ids to pin to (empty: none); a kernel is right when no element that should be finite is
    not, and max |error| <= rtol * max |expected|. That holds for the data of `buffers`, on which it is timed,
    and for all of `more_data`: further sets, each the `sha` of every buffer.
    """

    module: str
    symbol: str
    buffers: Tuple[BufferRequest, ...]
    workspace_bytes: int = 0
    timing: Optional[Timing] = None
    threads: int = 1
    cores: Tuple[int, ...] = ()
    timeout_s: float = 10.0
    rtol: float = 1e-4
    driver: str = "cpu"  # one of DRIVERS
    device: str = ""
    more_data: Tuple[Tuple[str, ...], ...] = ()

    @property
    def data_sets(self) -> Tuple[Tuple[str, ...], ...]:
        """All sets, the timed one first."""
        return (tuple(buffer.sha for buffer in self.buffers), *self.more_data)

    @classmethod
    def from_plain(cls, plain: object) -> "MeasureRequest":
        """Checked copy of a received map."""
        known = known_keys(plain, cls)
        timing, more_data = known.get("timing"), known.get("more_data", ())
        buffers = tuple(BufferRequest.from_plain(entry) for entry in take(known, "buffers", list))
        if not 1 <= len(buffers) <= MAX_BUFFERS:
            raise ProtocolError(BAD_REQUEST, f"'buffers': expected 1 to {MAX_BUFFERS}, found {len(buffers)}")
        return cls(
            module=take_sha(known, "module"),
            symbol=take_symbol(known, "symbol"),
            buffers=buffers,
            workspace_bytes=take(known, "workspace_bytes", int, 0, MAX_BUFFER_BYTES),
            timing=None if timing is None else Timing.from_plain(timing),
            threads=take(known, "threads", int, 1, MAX_THREADS),
            cores=_core_ids(known),
            timeout_s=take(known, "timeout_s", float, 0.001, MAX_TIMEOUT_S),
            rtol=take(known, "rtol", float, 0, 1),
            driver=take_choice(known, "driver", DRIVERS),
            device=take(known, "device", str)[:200],
            more_data=_data_sets(more_data, buffers),
        )


def _core_ids(plain: Dict[str, Any]) -> Tuple[int, ...]:
    """Entry `cores`, checked."""
    cores = take(plain, "cores", list)
    if len(cores) > MAX_THREADS or not all(type(core) is int and 0 <= core < 4096 for core in cores):
        raise unexpected("'cores'", "core ids", cores)
    return tuple(cores)


def _data_sets(found: object, buffers: Tuple[BufferRequest, ...]) -> Tuple[Tuple[str, ...], ...]:
    """Checked `more_data`: an object for each buffer that has one in the timed set, and for no other."""
    if not isinstance(found, (list, tuple)) or len(found) > MAX_DATA_SETS:
        raise unexpected("'more_data'", f"at most {MAX_DATA_SETS} lists", found)
    for entry in found:
        if not isinstance(entry, (list, tuple)) or len(entry) != len(buffers):
            raise unexpected("'more_data'", f"lists of {len(buffers)} objects", entry)
    return tuple(
        tuple(
            take_sha({"more_data": sha}, "more_data") if buffer.sha else ""
            for buffer, sha in zip(buffers, entry)
        )
        for entry in found
    )


@dataclass(frozen=True)
class MeasureFailure:
    """Why there is no number; `signal` is what killed the child, if one did."""

    kind: str  # one of FAILURE_KINDS
    text: str
    signal: Optional[int] = None

    @classmethod
    def from_plain(cls, plain: object) -> "MeasureFailure":
        """Checked copy of a received map."""
        known = known_keys(plain, cls)
        signal = None if known.get("signal") is None else take(known, "signal", int, 1, 128)
        return cls(take_choice(known, "kind", FAILURE_KINDS), take(known, "text", str), signal)


@dataclass(frozen=True)
class MeasureResult:
    """`seconds` per call, one entry a repeat, each the mean of `number` calls; empty after a failure or when
    only checked. `device_s` is how long the board was busy with it; `facts` are `cores` and some of FACTS."""

    seconds: Tuple[float, ...] = ()
    number: int = 0
    error: Optional[MeasureFailure] = None
    max_abs_error: float = 0.0
    max_abs_reference: float = 0.0
    facts: Dict[str, Any] = field(default_factory=dict)
    device_s: float = 0.0

    @classmethod
    def from_plain(cls, plain: object) -> "MeasureResult":
        """Checked copy of a received map."""
        known = known_keys(plain, cls)
        seconds, error = take(known, "seconds", list), known.get("error")
        if len(seconds) > MAX_REPEAT or not all(type(s) is float and 0 < s <= MAX_TIMEOUT_S for s in seconds):
            raise unexpected("'seconds'", "positive times", seconds)
        found = take(known, "facts", dict)
        facts = {name: take(found, name, *bounds) for name, bounds in FACTS.items() if name in found}
        if "cores" in found:
            facts["cores"] = list(_core_ids(found))
        return cls(
            seconds=tuple(seconds),
            number=take(known, "number", int, 0, MAX_NUMBER),
            error=None if error is None else MeasureFailure.from_plain(error),
            max_abs_error=take(known, "max_abs_error", float, 0),
            max_abs_reference=take(known, "max_abs_reference", float, 0),
            facts=facts,
            device_s=take(known, "device_s", float, 0, MAX_DEVICE_S),
        )


def permission_text(bundle_id: str, nonce: str) -> bytes:
    """What a trusted signer signs to permit an older bundle; `nonce` is the connection's, from `slots`."""
    return f"allow-downgrade {bundle_id} {nonce}\n".encode()
