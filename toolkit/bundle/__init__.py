"""Bundles: one signed file that carries a tuned model to a board.

What enters: one `plan.ModelPlan` per target, golden inputs and outputs, a signing key. What leaves: a file.
Files in program order: manifest (what a bundle says about itself), plan (what a model library is made of),
library (plan to shared object), sign (Ed25519 in SSHSIG form), container (the file's bytes), pack (the door
for writing), verify (the door for reading: nothing is believed before its signature and hashes hold).
"""
