"""A torch.distributed backend: `init_process_group("hvd")`."""

import importlib
from typing import TYPE_CHECKING, Any

from torch_hvd._autoload import register

if TYPE_CHECKING:
    from torch_hvd import hooks
    from torch_hvd._C import Options
    from torch_hvd._compression import compression
    from torch_hvd._run import run
    from torch_hvd._trace import start_timeline, statistics, stop_timeline

__all__ = [
    "Options",
    "__version__",
    "compression",
    "hooks",
    "run",
    "start_timeline",
    "statistics",
    "stop_timeline",
]
__version__ = "0.1.0.dev0"

register()


def __getattr__(name: str) -> Any:
    # These need the extension module, which must not be loaded before someone asks for it.
    if name == "Options":
        from torch_hvd._load import _C

        return _C.Options
    if name == "compression":
        from torch_hvd._compression import compression

        return compression
    if name == "hooks":
        return importlib.import_module("torch_hvd.hooks")
    if name == "run":
        from torch_hvd._run import run

        return run
    if name in __all__:
        from torch_hvd import _trace

        return getattr(_trace, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
