"""Damaged files: cost models, ONNX files, board files, caches, and what a board and a host keep of bundles.

Each is damaged at random, and given to the commands that read it. They must refuse with exit code 2 or 6 and
a message, or work right: because a cache is made again, or because the file still says what the tool did.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import msgspec
import numpy as np
import onnxruntime
from click.testing import CliRunner

import boards
from boards.board import load
from boards.files import is_whole, seal, write_sealed
from cross.link import compile_c, link, native_objects
from device_runtime.drivers.binaries import Binaries
from tests.bundles import small_model
from tests.loopback.flashing import Flasher
from tests.loopback.tune_board import HOST, board_file, small_network
from tests.onnx_models import random_inputs, save
from tests.torture.attack import Attack, Run
from toolkit.bundle.sign import key_file
from toolkit.cli.main import main
from toolkit.cost_model import model_file
from toolkit.errors import ToolkitError
from toolkit.measure.archive import archive_name, runtime_archive
from toolkit.measure.peak import BoardFacts, TargetFacts, facts_path, load_board
from toolkit.measure.session import open_session
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference
from toolkit.records import Records

IN_A_PROCESS: Final = 60  # one case of so many is given to a process, the others to the command here
HOSTILE: Final = (None, -1, 2**63, 1e300, "", "x", [], {}, True, [[]], "\x1b]0;owned\x07", "x" * 5000)
C_SOURCE: Final = "int twice(int x) { return 2 * x; }"


def damaged(run: Run, data: bytes) -> bytes:
    """The content with something wrong somewhere; never the content itself."""
    rng = run.rng
    while True:
        how, changed = rng.randrange(7), bytearray(data)
        at = rng.randrange(len(data))
        if how == 0:
            for _ in range(rng.choice((1, 1, 2, 20))):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at:]
        elif how == 2:
            changed = bytearray()
        elif how == 3:
            changed = bytearray(rng.randbytes(rng.randrange(1, 4096)))
        elif how == 4:
            changed[at : at + rng.randrange(1, 512)] = bytes(rng.randrange(1, 512))
        elif how == 5:
            changed[at:at] = rng.choice((b"\xff\xfe", b"\0", b"}", b"[" * 2000, b"\xed\xa0\x80", b"9" * 500))
        else:
            changed[at : at + rng.randrange(1, 64)] = b""
        if changed != data:
            return bytes(changed)


def retyped(run: Run, content: Any) -> Any:
    """The content with one entry replaced by something of another kind, or left out."""
    copy = msgpack.unpackb(msgpack.packb(content), strict_map_key=False)
    place = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = run.rng.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and run.rng.random() < 0.7:
            place = place[key]
            continue
        if isinstance(place, dict) and run.rng.random() < 0.3:
            del place[key]
        else:
            place[key] = run.rng.choice(HOSTILE)
        return copy


class Commands:
    """The commands, with a home of their own; mostly in this process, now and then in one of theirs."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.count = 0

    def __call__(self, *arguments: object) -> tuple[int, str]:
        """Exit code, and what was printed; 1 and the exception where the command did not catch it."""
        words = [str(argument) for argument in arguments]
        self.count += 1
        if self.count % IN_A_PROCESS == 0:
            environment = {**os.environ, "HOME": str(self.home)}
            command = [sys.executable, "-m", "toolkit.cli", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            return done.returncode, done.stdout + done.stderr
        before, os.environ["HOME"] = os.environ["HOME"], str(self.home)
        try:
            result = CliRunner().invoke(main, words)
        finally:
            os.environ["HOME"] = before
        caught = isinstance(result.exception, SystemExit) or result.exception is None
        return (result.exit_code, result.output) if caught else (1, repr(result.exception))


def refused(code: int, text: str) -> bool:
    """Whether that is how the README says that a command refuses a file."""
    return code in (2, 6) and "error: " in text and "Traceback" not in text


# ----------------------------------------------------------------------------------------------- the models


def damage_models(run: Run) -> None:
    """Files of cost models: bytes, and entries whose checksum is right."""
    commands = Commands(run.folder)
    shipped = Path(model_file.__file__).parent / "priors" / "x86-64-avx512.tfbm"
    whole = shipped.read_bytes()
    content = msgpack.unpackb(whole[model_file.HEADER.size :])
    path = run.folder / "damaged.tfbm"
    for number in run:
        resealed = number % 3 == 0
        if resealed:
            payload = msgpack.packb(retyped(run, content))
            digest = hashlib.sha256(payload).digest()
            head = model_file.HEADER.pack(model_file.MAGIC, model_file.FORMAT_VERSION, len(payload), digest)
            path.write_bytes(head + payload)
        else:
            path.write_bytes(damaged(run, whole))
        code, text = commands("model", "show", path)
        withstood = refused(code, text) or (resealed and code == 0)
        run.check(withstood, f"case {number}: model show ended with {code}: {text}")
        try:
            model_file.load_cost_model(path)
            run.check(resealed, f"case {number}: a damaged model was loaded")
        except ToolkitError as error:
            run.check(error.exit_code == 2, f"case {number}: {error!r}")


# ------------------------------------------------------------------------------------------------------ ONNX


def damage_onnx(run: Run) -> None:
    """ONNX files, which have no checksum: what is taken must compute what onnxruntime computes of it."""
    commands = Commands(run.folder)
    path = save(run.folder, small_network())
    whole = path.read_bytes()
    shapes = {"x": (2, 3, 14, 14)}
    store = run.folder / "records.db"
    Records(store).close()
    arguments = ("report", path, "--board", "host", "--records", store, "--shape", "x=2,3,14,14")
    for number in run:
        path.write_bytes(damaged(run, whole))
        code, text = commands(*arguments)
        found = "" if code == 0 else text
        if code == 0:
            found = _another_result(path, shapes, whole)
        run.check(refused(code, text) or (code == 0 and not found), f"case {number}: {code}, {found[-800:]}")


def _another_result(path: Path, shapes: dict[str, tuple[int, ...]], whole: bytes) -> str:
    """What differs from onnxruntime's outputs of the file or, where it refuses that, of the whole one."""
    graph = load_model(path, shapes)
    inputs = random_inputs(graph)
    ours = run_reference(graph, inputs)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    for data in (path.read_bytes(), whole):
        try:
            session = onnxruntime.InferenceSession(data, quiet, providers=["CPUExecutionProvider"])
            named = {
                entry.name: inputs[name] for entry, name in zip(session.get_inputs(), inputs, strict=True)
            }
            theirs = session.run(None, named)
            break
        except Exception:  # noqa: BLE001 - of onnxruntime's own kinds, which share no root
            continue
    for mine, other in zip(ours.values(), theirs, strict=True):
        if mine.shape != other.shape or not np.allclose(mine, other, rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"the import computes {mine.ravel()[:8]}, onnxruntime {other.ravel()[:8]}"
    return ""


# ----------------------------------------------------------------------------------------------- board files


def damage_boards(run: Run) -> None:
    """Board files: what is taken must be what the file says."""
    commands = Commands(run.folder)
    shipped = sorted(Path(boards.__file__).parent.glob("*.toml"))
    path = run.folder / "damaged.toml"
    for number in run:
        path.write_bytes(damaged(run, run.rng.choice(shipped).read_bytes()))
        code, text = commands("boards", "show", path, "--json")
        found = _says_otherwise(path) if code == 0 else text
        run.check(refused(code, text) or (code == 0 and not found), f"case {number}: {code}, {found[-800:]}")


def _says_otherwise(path: Path) -> str:
    """The first place of the file that the loaded board contradicts."""
    said = tomllib.loads(path.read_bytes().decode())
    if said.get("probed"):
        said = {
            key: said[key] for key in set(said) - {"targets", "memory_bytes"}
        }  # filled in from this machine
    return _contradicted(json.loads(json.dumps(said)), json.loads(msgspec.json.encode(load(path))), "")


def _contradicted(said: Any, found: Any, where: str) -> str:
    if isinstance(said, dict):
        return next(
            filter(None, (_contradicted(said[key], found[key], f"{where}.{key}") for key in said)), ""
        )
    if isinstance(said, list) and len(said) == len(found):
        return next(filter(None, (_contradicted(*both, where) for both in zip(said, found, strict=True))), "")
    return "" if said == found else f"{where} is {found!r}, the file says {said!r}"


# ---------------------------------------------------------------------------------------------------- caches


def damage_caches(run: Run) -> None:
    """Every cache: what is used afterwards is what would be used without it."""
    caches = [_archive(run), _facts(run), _binaries(run), _folder(run)] * 5 + [_native(run)]
    for number in run:
        strike = caches[number % len(caches)]
        found = strike()
        run.check(not found, f"case {number}: {found}")


def _archive(run: Run) -> Callable[[], str]:
    board = load(board_file(run.folder, HOST))

    def strike() -> str:
        path = run.folder / archive_name()
        path.write_bytes(damaged(run, runtime_archive()))
        with open_session(board, cache_dir=run.folder, lease=False) as session:
            return "" if session.hello.pid and path.read_bytes() == runtime_archive() else "another archive"

    return strike


def _facts(run: Run) -> Callable[[], str]:
    board = load("rpi3b")
    target = board.target()
    measured = {target.name: TargetFacts(key=target.key, cores=target.cores, peak_gflops=42.0)}
    facts = BoardFacts(board=board.name, emulated=False, unix_s=0, targets=measured)
    path = facts_path(board, run.folder)
    path.parent.mkdir()

    def strike() -> str:
        write_sealed(path, msgspec.json.encode(facts))
        if load_board("rpi3b", cache_dir=run.folder).target().peak_gflops != 42.0:
            return "whole figures are not read"
        path.write_bytes(damaged(run, path.read_bytes()))
        found = load_board("rpi3b", cache_dir=run.folder).target().peak_gflops
        return "" if found == target.peak_gflops else f"a damaged file gives a peak of {found}"

    return strike


def _binaries(run: Run) -> Callable[[], str]:
    kept = Binaries(str(run.folder / "binaries"))

    def strike() -> str:
        kept.put("key", b"what a driver made")
        path = run.folder / "binaries" / "key"
        path.write_bytes(damaged(run, path.read_bytes()))
        return "" if kept.get("key") is None else "a damaged binary is used"

    return strike


def _folder(run: Run) -> Callable[[], str]:
    """As the emulation's: files in folders, under one seal."""
    folder = run.folder / "sealed"
    for name in ("usr/bin/python", "usr/lib/a.py", "lib/libc.so"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(run.rng.randbytes(1000))
    seal(folder)

    def strike() -> str:
        path = run.rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        whole = path.read_bytes()
        path.write_bytes(damaged(run, whole))
        believed = is_whole(folder)
        path.write_bytes(whole)
        return "a damaged folder is believed" if believed or not is_whole(folder) else ""

    return strike


def _native(run: Run) -> Callable[[], str]:
    host = load("host").target()
    code = compile_c(C_SOURCE, host)

    def linked() -> bytes:
        extra = native_objects(host, run.folder)
        return link([code], host, extra_objects=extra, cache_dir=run.folder)

    whole = linked()
    folder = native_objects(host, run.folder)[0].parent

    def strike() -> str:
        path = run.rng.choice(sorted(folder.iterdir()))
        path.write_bytes(damaged(run, path.read_bytes()))
        return "" if linked() == whole else f"another artifact with a damaged {path.name}"

    return strike


# ------------------------------------------------------------------ what board and host keep of bundles

BOARD_FILES: Final = (
    "slots/state.json", "allowed_signers", "board_name", "lease.json", "current/manifest.json",
    "current/manifest.json.sig", "current/golden/output-000.bin",
)  # fmt: skip
HOST_FILES: Final = ("signing_key", "signing_key.pub", "allowed_signers")


def damage_state(run: Run) -> None:
    """What the board and the host keep: the commands refuse, and flashing repairs, or says what to remove."""
    commands = Commands(run.folder)
    flasher = Flasher(load(board_file(run.folder, HOST)), run.folder)
    config = key_file(commands.home / ".config" / "tune-for-board").parent
    shutil.copytree(run.folder / "config", config)
    (config / "allowed_signers").write_text(flasher.key.public.allowed_signers_line)
    flasher.flash(1)
    flasher.flash(2)
    whole = {root: run.folder / f"whole-{root.name}" for root in (flasher.device_dir, config)}
    for root, copy in whole.items():
        shutil.copytree(root, copy, symlinks=True)
    board = ("--board", run.folder / "board.toml")
    inputs = run.folder / "x.npy"
    np.save(inputs, small_model(1).x)
    shown: tuple[tuple[object, ...], ...] = (
        ("flash", "--status", *board),
        ("run", inputs, "-o", run.folder / "outputs", *board),
        ("flash", "--rollback", *board),
        ("flash", flasher.bundle(2), *board),
    )
    for number in run:
        for root, copy in whole.items():
            shutil.rmtree(root)
            shutil.copytree(copy, root, symlinks=True)
        on_board = run.rng.random() < 0.75
        root = flasher.device_dir if on_board else config
        path = root / run.rng.choice(BOARD_FILES if on_board else HOST_FILES)
        _strike(run, path)
        code, text = commands(*run.rng.choice(shown))
        if not (code == 0 or refused(code, text)):
            run.fails(f"case {number}, {path.name}: {code}, {text[-800:]}")
            continue
        found = _repaired(commands, flasher, path, board)
        run.check(not found, f"case {number}, {path.name}: {found}")


def _strike(run: Run, path: Path) -> None:
    data = path.read_bytes()
    path.chmod(0o600)
    if run.rng.random() < 0.1:
        path.unlink()
        return
    if path.suffix == ".json" and run.rng.random() < 0.3:
        path.write_text(json.dumps(retyped(run, json.loads(data))))
        return
    path.write_bytes(damaged(run, data))


def _repaired(commands: Commands, flasher: Flasher, path: Path, board: tuple[object, ...]) -> str:
    """What is wrong after the next flash, if need be with the file removed that the refusal names."""
    code, text = commands("flash", flasher.bundle(2), *board)
    if code != 0:
        if not refused(code, text) or (str(path.name) not in text and "add this line" not in text):
            return f"the next flash ends with {code} and names no {path.name}: {text[-500:]}"
        path.unlink(missing_ok=True)
        path.with_suffix(".pub").unlink(missing_ok=True)
        code, text = commands("flash", flasher.bundle(2), *board)
    if code != 0:
        return f"after the remedy flash ends with {code}: {text[-500:]}"
    flasher.assert_runs(2)
    return ""


ATTACKS = (
    Attack("damaged-models", "a damaged cost model is shown and loaded", 600, 60, damage_models),
    Attack("damaged-onnx", "a damaged ONNX file is imported", 300, 40, damage_onnx),
    Attack("damaged-boards", "a damaged board file is shown", 300, 40, damage_boards),
    Attack("damaged-caches", "a damaged cache is used", 300, 21, damage_caches),
    Attack("damaged-state", "what board or host keep of bundles is damaged", 300, 3, damage_state),
)
