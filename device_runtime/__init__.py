"""What runs on the board: Python >= 3.8, standard library and pure Python msgpack, shipped as one .pyz.

The rooms, each importing only from those before it: wire (frames, TLS, file formats) and protocol.py (the
messages; all that the host imports), content_store.py, sandbox (one child process per measurement), drivers
(OpenCL and CUDA), measure (what that child does), installed (bundles and their models), server (the methods).
"""
