"""Bundles: one signed file that carries a tuned model to a board.

What enters: one `build.BuiltModel` per target, golden inputs and outputs, a signing key. What leaves: a file.
Files in program order: manifest (what a bundle says about itself), model_plan (what a compiled model is made
of), assemble (graph and kernels to a plan), library (plan to shared object), gpu_model (plan to GpuModel),
build (plan to what a board loads), sign (Ed25519 in SSHSIG form), container (the file's bytes), pack (the
door for writing), verify (the door for reading: nothing is believed before its signature and hashes hold).
"""
