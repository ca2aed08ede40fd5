"""A torch.distributed backend: `init_process_group("hvd")`."""

from typing import TYPE_CHECKING, Any

from torch_hvd._autoload import register

if TYPE_CHECKING:
    from torch_hvd._C import Options

__all__ = ["Options", "__version__"]
__version__ = "0.1.0.dev0"

register()


def __getattr__(name: str) -> Any:
    # Options live in the extension module, which must not be loaded before someone asks for it.
    if name == "Options":
        from torch_hvd._load import _C

        return _C.Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
