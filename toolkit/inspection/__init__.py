"""Why a kernel is as fast as it is (`toolkit inspect`): kernels.py finds those of a bundle or a records
store, inspect.py says what one does; cpu_report.py and gpu_report.py are tables of several. bundles.py says
what is in a whole bundle, and what changed from one to another (`toolkit bundle`)."""
