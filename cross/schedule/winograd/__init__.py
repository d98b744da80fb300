"""Schedule spaces of Winograd's algorithms. stages.py finds them; cpu.py and gpu.py are the sketches."""
