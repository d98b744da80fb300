"""The C header that goes into every bundle, as an application's author reads it."""

from __future__ import annotations


from msgspec.structs import replace

from tests.bundles import small_model
from tests.conftest import GoldenCheck
from toolkit.bundle import library
from toolkit.bundle.manifest import TensorSpec


def test_header_of_a_small_model(golden: GoldenCheck) -> None:
    plan = small_model().plan
    image = TensorSpec("data_0", (1, 3, 224, 224), "float32", "NCHW")
    plan = replace(plan, name="small network", inputs=(image, *plan.inputs))
    golden("model.h", library.header(plan))
