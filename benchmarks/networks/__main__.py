"""Write one of the networks: python -m benchmarks.networks NAME OUTPUT."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.networks import NETWORKS, write


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("output", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    parser.add_argument(
        "--size", type=int, help="of the image, the sequence or the channels (default: usual)"
    )
    arguments = parser.parse_args()
    print(write(arguments.network, arguments.output, arguments.seed, arguments.size))


if __name__ == "__main__":
    main()
