"""The process that compiles: started by builder.py, spoken to over the socket that is its first argument.

The second argument says how far it gives way to other processes (nice). It receives the target once, then
(symbol, unit) again and again, and answers each with the bytes of an object file or a MeasureFailure. It ends
when the other side closes.
"""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.connection import Connection

from cross.compile import compile_object
from cross.errors import CrossError
from device_runtime.protocol import MeasureFailure

TEXT_LIMIT = 2000
NEW_OBJECTS = 50_000
"""Between two looks for garbage: about as many as one job makes, nearly all of them in use until it ends."""


def serve(connection: Connection) -> None:
    """Answer jobs until the connection closes."""
    target = connection.recv()
    gc.freeze()  # the modules are no garbage
    gc.set_threshold(NEW_OBJECTS)
    while True:
        try:
            symbol, unit = connection.recv()
        except EOFError:
            return
        try:
            connection.send(compile_object(symbol, unit, target))
        except CrossError as error:
            connection.send(MeasureFailure("build", str(error)[:TEXT_LIMIT]))


if __name__ == "__main__":
    os.nice(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))
