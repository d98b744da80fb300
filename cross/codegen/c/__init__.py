"""OpenCL C and CUDA C: family.py prints, opencl.py and cuda.py are its dialects. Start at gpu_code.py."""
