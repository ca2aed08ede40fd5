"""Facts of the build; setup.py writes the module beside `_C`."""

TORCH_VERSION: str
COMPILER: str
CUDA: str  # "yes: ..." or "no: ..." and why, of `_cuda`
