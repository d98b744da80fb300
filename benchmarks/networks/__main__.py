"""Write one of the networks: python -m benchmarks.networks NAME OUTPUT."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.networks import NETWORKS, write
from benchmarks.networks.quantized import SCHEMES, quantize_as


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("output", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    parser.add_argument(
        "--size", type=int, help="of the image, the sequence or the channels (default: usual)"
    )
    parser.add_argument(
        "--quantized", choices=sorted(SCHEMES), help="8-bit integers, as this exporter writes"
    )
    arguments = parser.parse_args()
    path = write(arguments.network, arguments.output, arguments.seed, arguments.size)
    print(quantize_as(arguments.quantized, path, path, arguments.seed) if arguments.quantized else path)


if __name__ == "__main__":
    main()
