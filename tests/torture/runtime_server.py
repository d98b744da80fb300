"""Runtimes without the start of a Python for each: python -I runtime_server.py SOCKET ARCHIVE CONTROL.

Loads the runtime from its archive once and forks a process of its own for every connection that connector.c
hands over, which runs the archive's main() on the given descriptors and arguments. Ends with its input.
"""

from __future__ import annotations

import array
import ctypes
import os
import select
import signal
import socket
import sys

PID_AT = 12  # of `pid` in struct control of io_shim.c


def main() -> None:
    path, archive, control = sys.argv[1:]
    sys.path.insert(0, archive)
    from device_runtime import __main__ as runtime  # of the archive, as on a board

    assert runtime.__file__.startswith(archive)
    spare = ctypes.CDLL(None).tfb_io_spare
    spare(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    print("listening", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        words, control_messages, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(12))
        fds = array.array("i", control_messages[0][2]).tolist()
        if os.fork() == 0:
            status = 1
            try:
                listener.close()
                spare(0)
                status = serve(runtime, fds, [archive, *words.decode().splitlines()[1:]], control)
            finally:
                os._exit(status)
        for fd in fds:
            os.close(fd)
        connection.close()


def serve(runtime: object, fds: list[int], words: list[str], control: str) -> int:
    """In a process of its own: what `python ARCHIVE WORDS` would do. The connection closes when it ends."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(control, "r+b") as file:
        file.seek(PID_AT)
        file.write(os.getpid().to_bytes(4, "little"))
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = words
    return runtime.main()  # type: ignore[attr-defined, no-any-return]


if __name__ == "__main__":
    main()
