"""Runs every kernel of a folder once; the Python of an emulated board starts this file by itself.

Reads kernels.so, plan.json and data.bin, writes outputs.bin: the last buffer of each kernel in turn.
Standard library only, Python >= 3.8.
"""

import ctypes
import json
import os
import sys

ALIGNMENT_BYTES = 64


def aligned(content, keep):
    """The address of a 64-byte aligned copy of the bytes; `keep` holds its memory."""
    memory = ctypes.create_string_buffer(len(content) + ALIGNMENT_BYTES)
    keep.append(memory)
    address = -(-ctypes.addressof(memory) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    ctypes.memmove(address, content, len(content))
    return address


def main(folder):
    library = ctypes.CDLL(os.path.join(folder, "kernels.so"))
    with open(os.path.join(folder, "plan.json")) as stream:
        plan = json.load(stream)
    with open(os.path.join(folder, "data.bin"), "rb") as stream:
        data = stream.read()
    with open(os.path.join(folder, "outputs.bin"), "wb") as outputs:
        for job in plan:
            keep = []
            addresses = [aligned(data[start : start + size], keep) for start, size in job["buffers"]]
            workspace = ctypes.c_void_p(aligned(bytes(job["workspace_bytes"]), keep))
            pointers = (ctypes.c_void_p * len(addresses))(*addresses)
            status = library[job["symbol"]](pointers, workspace, None)
            if status != 0:
                sys.exit("{} returned {}".format(job["symbol"], status))
            outputs.write(ctypes.string_at(addresses[-1], job["buffers"][-1][1]))


if __name__ == "__main__":
    main(sys.argv[1])
