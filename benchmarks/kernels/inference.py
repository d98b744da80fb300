"""A whole network as something that is measured: where its files lie, and the arrays that it is checked with.

networks.py makes the files. Needs numpy only: every library's process imports this file in an environment of
its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SUITE = "networks"


@dataclass(frozen=True, slots=True)
class Network:
    """One inference of a network with one input and one output, batch 1.

    `model`: an ONNX file. `data`: an .npz file with the arrays "input" and "output", the latter by numpy.
    `library`: the shared object of our bundle; `float_library`: that of the same network before it was
    quantized, or "". `flops`: of its operators together. `bytes_once`: input, weights and output.
    """

    name: str
    model: str
    data: str
    library: str
    text: str
    flops: int
    bytes_once: int
    float_library: str = ""

    suite: ClassVar[str] = SUITE

    def described(self) -> dict[str, Any]:
        """JSON-able data that `parsed_network` reads."""
        return {"network": asdict(self)}

    def arrays(self) -> tuple[Array, Array]:
        """Input and expected output."""
        with np.load(Path(self.data), allow_pickle=False) as stored:
            return stored["input"], stored["output"]


def parsed_network(described: dict[str, Any]) -> Network:
    """The network that `Network.described` described."""
    return Network(**described["network"])
