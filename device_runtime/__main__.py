"""Start the runtime: by default it serves its own stdin and stdout.

python runtime.pyz --device-dir DIR
python runtime.pyz --device-dir DIR --listen 127.0.0.1:7070 --tls CREDENTIALS
"""

from __future__ import annotations

import argparse
import gc
import os
import sys

from device_runtime.content_store import sync_directory
from device_runtime.protocol import Connection, ProtocolError
from device_runtime.server.listen import listen
from device_runtime.server.serving import make_context, serve
from device_runtime.wire.streams import DescriptorStream


def main() -> int:
    """0 when the other side closed; 2 when it cannot start."""
    parser = argparse.ArgumentParser(prog="runtime.pyz", description="The board side of tune-for-board.")
    parser.add_argument("--device-dir", required=True, help="directory for uploads, slots and the lease")
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="serve TCP instead of stdin and stdout")
    parser.add_argument(
        "--tls",
        metavar="FILE",
        help="the board's credentials, made by `toolkit runtime archive`; readable by their owner only",
    )
    options = parser.parse_args()
    if bool(options.listen) != bool(options.tls):
        parser.error("--listen and --tls go together")
    device_dir = os.path.abspath(os.path.expanduser(options.device_dir))
    try:
        if not os.path.isdir(device_dir):
            os.makedirs(device_dir, mode=0o700, exist_ok=True)
            sync_directory(os.path.dirname(device_dir))  # what is written durably below needs a durable name
    except OSError as error:
        print(f"runtime: the folder {device_dir} cannot be made: {error.strerror}", file=sys.stderr)
        return 2
    try:
        gc.collect()
        gc.freeze()  # children then do not touch, and so do not copy, the pages of what is loaded by now
        if options.listen:
            address, _, port = options.listen.rpartition(":")
            listen(address or "127.0.0.1", int(port), device_dir, options.tls)
        else:
            _serve_stdio(device_dir)
    except (OSError, ProtocolError, ValueError) as error:
        print(f"runtime: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _serve_stdio(device_dir: str) -> None:
    """Keep the connection to ourselves: what anything prints goes to stderr, never between frames."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(Connection(DescriptorStream(read_fd, write_fd)), make_context(device_dir, read_fd))


if __name__ == "__main__":
    sys.exit(main())
