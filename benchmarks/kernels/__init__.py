"""Our kernels against other libraries' on the same machine in the same run. Start at `__main__.py`.

    python -m benchmarks.kernels setup-peers build/peers
    python -m benchmarks.kernels tune --only C6 --trials 100
    python -m benchmarks.kernels measure --only C6 --json build/bench/kernels.json

workloads.py is what is measured; tune.py finds our kernels; rounds.py measures everybody in turn, each in a
process of its own (worker.py, libraries/, own_worker.py, machine_worker.py); ratios.py and tables.py say what
came out. What runs inside a library's process needs the standard library and numpy only.
"""
