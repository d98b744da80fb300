"""The whole job: a network tuned for a board and packed as a signed bundle.

Files in program order: options (what is asked for, what is reported), kernels (records to kernels to a model
plan), latency (golden data, and the whole model's time on the board), job (the door).
"""
