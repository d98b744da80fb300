"""The .pyz: the same bytes every time, no more imports than promised, and old and new Pythons."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import marshal
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from boards.board import Board
from tests.loopback.conftest import CompileKernels
from tests.loopback.kernels import Kernels, assert_right
from toolkit.measure import archive
from toolkit.measure.session import open_session

PYENV = Path("~/.pyenv/versions").expanduser()
INTERPRETERS = [
    str(path)
    for version in ("3.8", "3.9", "3.10", "3.12", "3.13")
    for path in [*sorted(PYENV.glob(f"{version}.*/bin/python")), Path(f"/usr/bin/python{version}")]
    if path.exists()
]

# What the runtime may import beyond the standard library; found in the archive, never on the board.
OWN = {"device_runtime", "msgpack"}
LIST_IMPORTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import device_runtime.server.serving
print(json.dumps({
    name: getattr(module, "__file__", None) or ""
    for name, module in sys.modules.items() if name not in before
}))
"""
STANDARD_LIBRARY = {
    "abc", "argparse", "base64", "binascii", "collections", "contextlib", "ctypes", "dataclasses", "errno",
    "fcntl", "functools", "gc", "glob", "hashlib", "hmac", "importlib", "json", "math", "mmap", "os",
    "pathlib",
    "platform", "re", "resource", "select", "selectors", "shutil", "signal", "socket", "ssl", "stat",
    "struct", "subprocess", "sys", "tempfile", "time", "traceback", "typing",
}  # fmt: skip


def test_the_same_sources_give_the_same_bytes() -> None:
    command = [
        sys.executable, "-c",
        "import sys; from toolkit.measure.archive import runtime_archive;"
        "sys.stdout.buffer.write(runtime_archive())",
    ]  # fmt: skip
    other = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert other.stdout == archive.runtime_archive()
    with zipfile.ZipFile(io.BytesIO(other.stdout)) as file:
        names = file.namelist()
    assert names == sorted(names)
    assert {name.split("/")[0] for name in names} == {"__main__.py", "__main__.pyc", *OWN}
    modules = [name for name in names if name.endswith(".py")]
    assert {*names} - {"msgpack/COPYING"} == {*modules, *(f"{name}c" for name in modules)}


def test_bytecode_is_that_of_the_source_beside_it() -> None:
    with zipfile.ZipFile(io.BytesIO(archive.runtime_archive())) as packed:
        for name in packed.namelist():
            if name.endswith(".pyc"):
                source, stored = packed.read(name[:-1]), packed.read(name)
                code = marshal.loads(stored[16:])  # noqa: S302 - made by this process
                assert code == compile(source, name[:-1], "exec", dont_inherit=True)
                assert stored[:4] == importlib.util.MAGIC_NUMBER
                assert stored[8:16] == importlib.util.source_hash(source)


def test_this_python_takes_the_bytecode(tmp_path: Path) -> None:
    """Sources that would not compile are not looked at."""
    path = tmp_path / "runtime.pyz"
    with (
        zipfile.ZipFile(io.BytesIO(archive.runtime_archive())) as packed,
        zipfile.ZipFile(path, "w") as changed,
    ):
        for name in packed.namelist():
            changed.writestr(name, b"(" if name.endswith(".py") else packed.read(name))
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True)
    assert (done.returncode, "--device-dir" in done.stdout) == (0, True), done.stderr


def test_the_archive_carries_the_notice_of_the_library_in_it() -> None:
    with zipfile.ZipFile(io.BytesIO(archive.runtime_archive())) as packed:
        assert b"Licensed under the Apache License" in packed.read("msgpack/COPYING")


def test_a_fresh_interpreter_imports_the_archive_and_the_standard_library_only(tmp_path: Path) -> None:
    path = tmp_path / "runtime.pyz"
    path.write_bytes(archive.runtime_archive())
    command = [sys.executable, "-I", "-c", LIST_IMPORTS, str(path)]
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path)
    modules: dict[str, str] = json.loads(done.stdout)
    own = {name for name in modules if name.split(".")[0] in OWN}
    assert all(modules[name].startswith(str(path)) for name in own)
    assert "msgpack.fallback" in own
    foreign = {name.split(".")[0] for name in set(modules) - own} - set(sys.stdlib_module_names)
    assert foreign - {"_sysconfigdata__linux_x86_64-linux-gnu"} == set()


def test_the_runtime_names_only_these_standard_modules() -> None:
    named = set()
    for path in Path("device_runtime").resolve().rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named.add((node.module or "").split(".")[0])
    assert named - OWN - {"__future__"} <= STANDARD_LIBRARY


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_other_pythons_run_it(
    interpreter: str, local_board: Board, tmp_path: Path, compile_kernels: CompileKernels
) -> None:
    link = msgspec.structs.replace(local_board.link, python=interpreter)
    board = msgspec.structs.replace(local_board, link=link)
    with open_session(board, cache_dir=tmp_path / "cache") as session:
        kernels = Kernels(session, compile_kernels(os.uname().machine))
        assert_right(session, kernels)
        failures = [
            session.measure(kernels.request(name)).error for name in ("segfault", "one_element_wrong")
        ]
        assert [failure.kind for failure in failures if failure] == ["crash", "wrong_answer"]
        assert_right(session, kernels)
        assert f"python{'.'.join(session.hello.python.split('.')[:2])}" in os.path.realpath(interpreter)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-100], lambda data: data[::-1]])
def test_a_damaged_archive_in_the_cache_is_written_again(
    local_board: Board, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    (tmp_path / archive.archive_name()).write_bytes(damage(archive.runtime_archive()))
    with open_session(local_board, cache_dir=tmp_path, lease=False) as session:
        assert session.hello.pid > 0
