"""Registration of the backend "hvd" with c10d: what the entry points call."""

import warnings
from typing import Any


def _create(opts: Any, pg_options: Any) -> Any:
    from torch_hvd._backend import create

    return create(opts, pg_options)


def register() -> None:
    """Register "hvd" for CPU and CUDA tensors; a second time changes nothing.

    Never raises: it runs at the end of `import torch`, for every user of the environment. A failure
    is a RuntimeWarning, and "hvd" stays unknown, as it does where torch is built without c10d.
    """
    try:
        import torch.distributed as dist

        if dist.is_available():
            devices = ["cpu", "cuda"]
            dist.Backend.register_backend("hvd", _create, extended_api=True, devices=devices)
    except Exception as error:
        warnings.warn(f"torch_hvd could not register its backend: {error!r}", RuntimeWarning, 2)
