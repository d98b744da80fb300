"""The drivers of GPUs, OpenCL and CUDA, behind one interface: `device.Device`."""
