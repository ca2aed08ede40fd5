"""A torch.distributed backend: `init_process_group("hvd")`."""

import pkgutil
from typing import TYPE_CHECKING, Any

from torch_hvd._autoload import register

if TYPE_CHECKING:
    from torch_hvd import hooks
    from torch_hvd._C import Options
    from torch_hvd._compression import compression
    from torch_hvd._run import run
    from torch_hvd._survivors import lost_ranks
    from torch_hvd._trace import start_timeline, statistics, stop_timeline

__version__ = "0.1.0.dev0"

# These need the extension module, which must not be loaded before someone asks for it.
_LATER = {
    "Options": "torch_hvd._load:_C.Options",
    "compression": "torch_hvd._compression:compression",
    "hooks": "torch_hvd.hooks",
    "lost_ranks": "torch_hvd._survivors:lost_ranks",
    "run": "torch_hvd._run:run",
    "start_timeline": "torch_hvd._trace:start_timeline",
    "statistics": "torch_hvd._trace:statistics",
    "stop_timeline": "torch_hvd._trace:stop_timeline",
}
__all__ = [
    "Options",
    "__version__",
    "compression",
    "hooks",
    "lost_ranks",
    "run",
    "start_timeline",
    "statistics",
    "stop_timeline",
]

register()


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return pkgutil.resolve_name(_LATER[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
