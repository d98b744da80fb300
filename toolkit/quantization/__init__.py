"""A network of floats as one of 8-bit integers, by onnxruntime.quantization.

Files in program order: samples (what a folder of data holds), sessions (running models), quantizer (ranges,
and models with chosen layers quantized), noise (what a quantized model changes), quantize (the door).
"""
