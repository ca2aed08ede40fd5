"""The codecs' CUDA kernels; there if the build found a CUDA torch and nvcc.

Importing it, which works without a GPU, hands them to `_C`: `_C.has_device_kernels("cuda")`.
"""
