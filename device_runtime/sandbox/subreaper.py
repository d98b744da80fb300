"""Run a command and end, when it ends, every process that it left behind: the host's side of an emulator.

Under qemu-user no process can become the parent of those below it that lose their own: it refuses
PR_SET_CHILD_SUBREAPER (prctl(2)). A process of the machine itself can, above the emulator.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import List

from device_runtime.sandbox.isolation import LIBC, PR_SET_CHILD_SUBREAPER, die_with_parent
from device_runtime.sandbox.process_tree import kill_below, send

NOT_FOUND = 127  # as a shell says it


def main(command: List[str]) -> int:
    """The command's exit status, or 128 and the number of the signal that killed it. SIGTERM to this process
    kills it."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent(own)
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(NOT_FOUND)
    signal.signal(signal.SIGTERM, lambda number, frame: send(child, signal.SIGKILL))
    ended = 0
    while ended != child:
        ended, status = os.wait()
    kill_below(own)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
