"""The model library as an application sees it: through its header, from C and C++, and as one kernel."""

from __future__ import annotations

import ctypes
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

from cross.errors import LinkError
from cross.link import compile_c
from device_runtime.protocol import DTYPE_BYTES
from tests.bundles import SmallModel, host_target, small_model
from tests.compilers import host_compiler
from toolkit.bundle import library
from toolkit.bundle.build import BESIDE, MODULE
from toolkit.bundle.manifest import TensorSpec, counters
from toolkit.bundle.model_plan import BufferRef, Copy, Loop, ModelPlan, Step, check
from toolkit.errors import InputError

Kind = Literal["input", "output", "parameter", "arena"]

README = Path(__file__).parents[4] / "README.md"
PYTHON_38 = str(Path("~/.pyenv/versions/3.8.18/bin/python").expanduser())
APPLICATION = Path(__file__).with_name("application.c")


@pytest.fixture(scope="module")
def model() -> SmallModel:
    return small_model()


@pytest.fixture(scope="module")
def folder(model: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's library and header, as in a slot."""
    folder = tmp_path_factory.mktemp("model")
    built = library.build(model.plan, host_target())
    (folder / "model.so").write_bytes(built.shared_object)
    (folder / "model.h").write_bytes(built.header)
    for name, path in BESIDE.items():
        (folder / name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.slow  # zig, where the system has no compiler, makes its C start-up code on first use
@pytest.mark.parametrize("language", ["c", "c++"])
def test_an_application_gets_the_same_outputs(model: SmallModel, folder: Path, language: str) -> None:
    compiler, program = host_compiler(), folder / f"application-{language}"
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    compiled = ["-x", language, *warnings, "-I", folder, "-c", APPLICATION, "-o", f"{program}.o"]
    subprocess.run([*compiler, *compiled], check=True)
    subprocess.run(
        [*compiler, f"{program}.o", folder / "model.so", f"-Wl,-rpath,{folder}", "-o", program], check=True
    )
    results = []
    for shift in ("0", "4", "1"):
        done = subprocess.run([program, shift], input=model.x.tobytes(), capture_output=True)
        assert done.returncode == 0, done.stderr
        results.append(done.stdout)
    assert results[0] == results[1] == results[2]
    y = np.frombuffer(results[0], np.float32).reshape(model.y.shape)
    np.testing.assert_allclose(y, model.y, rtol=1e-5, atol=1e-6)


def blocks(language: str) -> list[str]:
    """The code blocks of the README's section about applications."""
    section = README.read_text().split("## Using the model on the board")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


@pytest.mark.parametrize("compiler", ["cc", "c++ -x c++"])
def test_the_example_of_the_readme_runs_as_it_stands(folder: Path, tmp_path: Path, compiler: str) -> None:
    (source,), (commands,) = blocks("c"), blocks("sh")
    (tmp_path / "application.c").write_text(source)
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip("no compiler of the system here")
    commands = re.sub(r"MODEL=\S+", f"MODEL={folder}", commands)
    if compiler != "cc":
        commands = commands.replace("cc application.c", "c++ -x c++ application.c -x none")
    done = subprocess.run(["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0.0  # of an input of zeros


@pytest.mark.slow
def test_pkg_config_knows_how_to_compile_with_the_model(folder: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None or shutil.which("cc") is None:
        pytest.skip("no pkg-config, or no compiler of the system here")
    (source,), said = blocks("c"), README.read_text()
    (tmp_path / "application.c").write_text(source)
    (line,) = re.findall(r"`(PKG_CONFIG_PATH=[^`]*)`", said)
    commands = f"MODEL={folder}\n{line}\n./application"
    done = subprocess.run(["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0.0


@pytest.mark.parametrize("python", [sys.executable, PYTHON_38])
def test_the_model_is_imported_and_called(model: SmallModel, folder: Path, python: str) -> None:
    """With numpy here, without it in the oldest Python; what it says of a wrong input, too."""
    if not Path(python).exists():
        pytest.skip("no Python 3.8 here")
    (lines,) = blocks("python")
    lines = lines.replace("/home/pi/.local/share/tune-for-board/current/cpu", str(folder))
    script = f"""
import array, sys
x = array.array("f", sys.stdin.buffer.read())
{lines}
assert model.inputs[0].name == "x" and model.inputs[0].shape == {model.x.shape}, model.inputs
for wrong in (array.array("d", x), x[:-1]):
    try:
        model(wrong)
    except (TypeError, ValueError) as error:
        assert "expected float32 (4, 8) in C order for input x" in str(error), error
    else:
        raise SystemExit("a wrong input was taken")
sys.stdout.buffer.write(memoryview(y).tobytes())
"""
    done = subprocess.run([python, "-c", script], input=model.x.tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    y = np.frombuffer(done.stdout, np.float32).reshape(model.y.shape)
    np.testing.assert_allclose(y, model.y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numpy", [True, False])
def test_values_of_every_dtype_go_in_and_come_out(numpy: bool, tmp_path: Path) -> None:
    """Half floats as their bits where there is no numpy: `memoryview.cast` does not know them."""
    specs = tuple(TensorSpec(dtype, (2, 3), dtype) for dtype in DTYPE_BYTES)
    steps = tuple(
        Copy(BufferRef("input", number), BufferRef("output", number), spec.size_bytes)
        for number, spec in enumerate(specs)
    )
    plan = ModelPlan("all", specs, specs, (), b"", 0, steps)
    check(plan)
    (tmp_path / "model.so").write_bytes(library.build(plan, host_target()).shared_object)
    (tmp_path / "tfb_model.py").write_bytes(MODULE.read_bytes())
    read = (
        "arrays.frombuffer(data, FORMATS[spec.dtype])"
        if numpy
        else "memoryview(data).cast(FORMATS[spec.dtype])"
    )
    script = f"""
import sys
{"" if numpy else "sys.modules['numpy'] = None"}
from tfb_model import FORMATS, arrays, model
given = [(spec, sys.stdin.buffer.read(spec.size_bytes)) for spec in model.inputs]
found = model(*[{read} for spec, data in given])
assert [item.shape for item in found] == [(2, 3)] * len(given)
sys.stdout.buffer.write(b"".join(memoryview(item).tobytes() for item in found))
"""
    sent = b"".join(np.arange(6).astype(spec.dtype).tobytes() for spec in specs)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, input=sent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == sent


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("kept", [0, 2])
def test_an_output_is_cut_to_what_counts(tmp_path: Path, numpy: bool, kept: int) -> None:
    table, count = TensorSpec("table", (2, 3, 2), "int32"), TensorSpec("n", (), "int64")
    counted = TensorSpec("table", (2, 3, 2), "int32", count="n", dimension=1)
    steps = tuple(
        Copy(BufferRef("input", number), BufferRef("output", number), spec.size_bytes)
        for number, spec in enumerate((table, count))
    )
    plan = ModelPlan("cut", (table, count), (counted, count), (), b"", 0, steps)
    check(plan)
    built = library.build(plan, host_target())
    assert "/* table: int32 2x3x2; how many of dimension 1 count is in output 1 */" in built.header.decode()
    (tmp_path / "model.so").write_bytes(built.shared_object)
    (tmp_path / "tfb_model.py").write_bytes(MODULE.read_bytes())
    script = f"""
import array, sys
{"" if numpy else "sys.modules['numpy'] = None"}
from tfb_model import model
found = model(array.array("i", range(12)), array.array("q", [{kept}]))
print(memoryview(found).format, list(memoryview(found).tobytes()), getattr(found, "shape", ()))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = np.arange(12, dtype=np.int32).reshape(2, 3, 2)[:, :kept]
    shape = expected.shape if numpy or kept else (0,)
    assert done.stdout == f"i {list(expected.tobytes())} {shape}\n"


@pytest.mark.parametrize("dtype, shape, dimension", [("int32", (), 0), ("int64", (1,), 0), ("int64", (), 2)])
def test_what_counts_is_an_integer_and_a_dimension(
    dtype: str, shape: tuple[int, ...], dimension: int
) -> None:
    table = TensorSpec("table", (2, 3), count="n", dimension=dimension)
    with pytest.raises(ValueError, match="dimension that count 'table'"):
        counters((table, TensorSpec("n", shape, dtype)))


@pytest.mark.parametrize("python", [sys.executable, PYTHON_38])
def test_empty_tensors_are_passed(model: SmallModel, tmp_path: Path, python: str) -> None:
    if not Path(python).exists():
        pytest.skip("no Python 3.8 here")
    nothing = TensorSpec("nothing", (0, 3))
    specs = {role: (*getattr(model.plan, role), nothing) for role in ("inputs", "outputs")}
    built = library.build(replace(model.plan, **specs), host_target())
    (tmp_path / "model.so").write_bytes(built.shared_object)
    (tmp_path / "tfb_model.py").write_bytes(MODULE.read_bytes())
    script = """
import array, sys
sys.dont_write_bytecode = True
from tfb_model import model
y, nothing = model(array.array("f", sys.stdin.buffer.read()), array.array("f"))
assert len(memoryview(nothing).tobytes()) == 0 and memoryview(nothing).format == "f"
sys.stdout.buffer.write(memoryview(y).tobytes())
"""
    command = [python, "-c", script]
    done = subprocess.run(command, input=model.x.tobytes(), capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    y = np.frombuffer(done.stdout, np.float32).reshape(model.y.shape)
    np.testing.assert_allclose(y, model.y, rtol=1e-5, atol=1e-6)


def test_the_whole_model_is_one_kernel(model: SmallModel, folder: Path) -> None:
    loaded = ctypes.CDLL(str(folder / "model.so"))
    loaded.tfb_model_workspace_bytes.restype = ctypes.c_int64
    assert loaded.tfb_model_workspace_bytes() == model.plan.workspace_bytes == 128 + 128
    memory = np.zeros(1024, np.uint8)
    start = -memory.ctypes.data % 64
    address = memory.ctypes.data + start
    x = memory[start + 256 : start + 256 + model.x.nbytes].view(np.float32)
    y = memory[start + 512 : start + 512 + model.y.nbytes].view(np.float32)
    x[:] = model.x.ravel()
    buffers = (ctypes.c_void_p * 2)(address + 256, address + 512)
    assert loaded.tfb_model(buffers, ctypes.c_void_p(address), None) == 0
    np.testing.assert_allclose(y.reshape(model.y.shape), model.y, rtol=1e-5, atol=1e-6)


def test_only_the_interface_is_exported(folder: Path) -> None:
    loaded = ctypes.CDLL(str(folder / "model.so"))
    for name in (*library.EXPORTS, "tfb_pool_create", "tfb_compare_f32", "tfb_time"):
        assert hasattr(loaded, name), name
    for name in ("k_scale", "k_dense", "tfb_parameters"):
        assert not hasattr(loaded, name), name


def test_the_first_run_finds_all_weights_mapped(model: SmallModel, tmp_path: Path) -> None:
    plan = replace(model.plan, parameters=model.plan.parameters + bytes(1 << 22))
    path = tmp_path / "weights.so"
    path.write_bytes(library.build(plan, host_target()).shared_object)
    loaded, instance = ctypes.CDLL(str(path)), ctypes.c_void_p()

    def mapped_bytes() -> int:
        """Of the library's file, into this process."""
        parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
        own = [part for part in parts if part.partition("\n")[0].endswith(str(path))]
        return sum(1024 * int(kib) for part in own for kib in re.findall(r"^Rss: +(\d+) kB", part, re.M))

    assert mapped_bytes() < len(plan.parameters)
    assert loaded.tfb_model_create(ctypes.byref(instance)) == 0
    assert mapped_bytes() >= len(plan.parameters)
    loaded.tfb_model_destroy(instance)


ON_STACKS = """
#include "tfb.h"
static void body(void *closure, int64_t begin, int64_t end) {
    volatile unsigned char block[1 << 20];
    (void)closure, (void)begin, (void)end;
    for (int at = 0; at < 1 << 20; at += 4096) block[at] = 1;
}
TFB_EXPORT int32_t k_scale(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    (void)buffers, (void)workspace;
    return tfb_parallel_for(pool, body, 0, tfb_pool_threads(pool));
}
"""

FIRST_RUN = """
import ctypes, resource, sys
PR_SET_THP_DISABLE = 41  # linux/prctl.h: large pages would be few
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
loaded, instance, memory = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.create_string_buffer(4096)
assert loaded.tfb_model_create_on(ctypes.byref(instance), 2, None, 0) == 0
buffers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
assert loaded.tfb_model_run(instance, buffers, buffers) == 0
print(faults() - before)
"""


@pytest.mark.parametrize("local_bytes", [0, 1 << 20])
def test_the_first_run_finds_the_stacks_of_all_threads(local_bytes: int, tmp_path: Path) -> None:
    """Of two threads, of which the calling one may have had pages of its own before. Not touched ahead, those
    of the other are missing but for a few."""
    pages = (1 << 20) // resource.getpagesize()
    code = compile_c(ON_STACKS, host_target())
    kernel = replace(small_model().plan.kernels[0], code=code, local_bytes=local_bytes)
    plan = _changed(kernels=(kernel,), steps=(Step("k_scale", (BufferRef("output", 0),), "stacks"),))
    path = tmp_path / "stacks.so"
    path.write_bytes(library.build(plan, host_target()).shared_object)
    command = [sys.executable, "-c", FIRST_RUN, str(path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (int(found) < pages // 4) == (local_bytes > 0)


def test_a_failing_kernel_is_an_error_code(folder: Path) -> None:
    model = small_model(scale="failing")
    path = folder / "failing.so"
    path.write_bytes(library.build(model.plan, host_target()).shared_object)
    loaded = ctypes.CDLL(str(path))
    loaded.tfb_model_error_text.restype = ctypes.c_char_p
    instance = ctypes.c_void_p()
    assert loaded.tfb_model_create(ctypes.byref(instance)) == 0
    x, y = model.x.copy(), np.zeros_like(model.y)
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    assert loaded.tfb_model_run(instance, inputs, outputs) == -1
    assert loaded.tfb_model_error_text(-1) == (
        b"a kernel reported a failure, such as that the system refuses it tile registers (AMX)"
    )
    loaded.tfb_model_destroy(instance)


def test_loops_are_not_left_turned_where_a_kernel_fails(tmp_path: Path) -> None:
    source = """
        #include "tfb.h"
        static int32_t calls;
        static void first(void *at, int64_t begin, int64_t end) {
            (void)end;
            if (*(float *)at < 0) *(float *)at = (float)begin;
        }
        TFB_EXPORT int32_t k_scale(void *const *buffers, void *workspace, struct tfb_pool *pool) {
            (void)workspace;
            float *found = (float *)buffers[0] + calls++;
            tfb_parallel_for(pool, first, found, 32);
            return calls == 3;
        }
    """
    kernel = replace(small_model().plan.kernels[0], code=compile_c(source, host_target()))
    step = Step("k_scale", (BufferRef("output", 0),), "begins")
    plan = _changed(kernels=(kernel,), steps=(step, Loop(3, (step,), alternating=True)))
    path = tmp_path / "failing.so"
    path.write_bytes(library.build(plan, host_target()).shared_object)
    loaded, found = ctypes.CDLL(str(path)), np.full(64, -1, np.float32)
    memory = np.zeros(1024, np.uint8)
    buffers = (ctypes.c_void_p * 2)(0, found.ctypes.data)
    for status in (-1, 0):
        address = ctypes.c_void_p(memory.ctypes.data + -memory.ctypes.data % 64)
        assert loaded.tfb_model(buffers, address, None) == status
    assert found[:7].tolist() == [0, 0, 30, 0, 0, 30, 0]


def test_same_plan_same_bytes(model: SmallModel) -> None:
    assert library.build(model.plan, host_target()) == library.build(model.plan, host_target())


def test_odd_names_do_not_break_the_source() -> None:
    model = small_model()
    spec = TensorSpec('in"put\n*/ \\ é', (4, 8))
    renamed = replace(
        model.plan,
        name="a */ name",
        inputs=(spec,),
        steps=tuple(replace(step, layer="/* layer */ \n x") for step in model.plan.steps),
    )
    built = library.build(renamed, host_target())
    assert b'in"put?* / ? ?' in built.header.replace(b"\\", b"?")


def test_a_missing_symbol_is_a_link_error(model: SmallModel) -> None:
    broken = replace(model.plan.kernels[0], code=model.plan.kernels[1].code)
    with pytest.raises(LinkError):
        library.build(replace(model.plan, kernels=(broken, model.plan.kernels[1])), host_target())


def _changed(**changes: object) -> ModelPlan:
    return replace(small_model().plan, **changes)


def _one_step(kind: Kind, at: int, symbol: str = "k_scale") -> ModelPlan:
    return _changed(steps=(Step(symbol, (BufferRef(kind, at),), "conv1"),))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_changed(steps=()), "has no steps"),
        (_one_step("output", 0, "k_absent"), "which no kernel of the plan defines"),
        (_one_step("input", 1), r"step 0 \(conv1\): input 1 is outside"),
        (_one_step("arena", 32), "arena offset 32 is not a multiple of 64"),
        (_one_step("parameter", 4096), "parameter 4096 is outside 0..159"),
        (_one_step("arena", 0), r"no step writes output 0 \('y'\)"),
        (_changed(kernels=small_model().plan.kernels[:1] * 2), "two kernels have the same symbol"),
        (_changed(inputs=(TensorSpec("x", (4, 8), "complex64"),)), "has dtype 'complex64'; expected one of"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(broken: ModelPlan, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(broken)
