"""The one place that imports the extension module: `from torch_hvd._load import _C`.

Raises ImportError, one line with the remedy, where the module is not built or is built for another
minor release of torch.
"""

import torch

try:
    from torch_hvd import _build
except ImportError as error:
    raise ImportError(
        "torch_hvd is not built in this folder: run `pip install .`, or to work on it "
        "`pip install -e . --no-build-isolation`"
    ) from error

# Asked before _C is opened: c10d has no stable ABI, so with another minor that fails with an
# undefined symbol, or works and corrupts memory.
if torch.__version__.split(".")[:2] != _build.TORCH_VERSION.split(".")[:2]:
    raise ImportError(
        f"torch_hvd was built with torch {_build.TORCH_VERSION} but meets torch "
        f"{torch.__version__}: rebuild it with `pip install --force-reinstall --no-deps .`"
    )

from torch_hvd import _C

__all__ = ["_C"]
