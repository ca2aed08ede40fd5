"""What `init_process_group("hvd")` and `new_group` call to make a backend."""

import copy
import logging
import os
from types import SimpleNamespace
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from torch_hvd import _log, _names, _nccl, _settings, _trace, _transport
from torch_hvd._load import _C
from torch_hvd._store import Meeting


def _own_store(store: Store, size: int) -> Store:
    """The part of the store that belongs to this group and to no earlier one of its name.

    c10d gives the same prefix again when a program destroys its groups and makes new ones, which
    may be of fewer ranks, as after one has died.
    """
    generation = (store.add(f"hvd/{size}/generation", 1) - 1) // size
    return PrefixStore(f"hvd/{size}/{generation}", store)


def create(opts: Any, pg_options: Any) -> Any:
    """Make the backend of one process group.

    Args:
        opts: c10d's DistributedBackendOptions: store, group_rank, group_size, timeout, group_id.
        pg_options: a `torch_hvd.Options`, or None.

    Raises:
        TypeError: `pg_options` is of another type.
        ValueError: the timeout or a setting has a value that is not allowed, see `_settings`, on
            any rank, or a setting differs from that of another rank.
    """
    if pg_options is None:
        options = _C.Options()
    elif isinstance(pg_options, _C.Options):
        options = copy.copy(pg_options)  # its owner may give it to several groups
    else:
        raise TypeError(
            f'pg_options of the backend "hvd" is {pg_options!r}; it takes a torch_hvd.Options'
        )
    rank, size = opts.group_rank, opts.group_size
    meeting = Meeting(_own_store(opts.store, size), rank, range(size), opts.timeout)
    try:
        _settings.check_timeout(opts.timeout)
        settings = _settings.resolve(options, os.environ)
        stats_edges = _settings.stats_edges(os.environ)
        _settings.check_others(os.environ)
        _log.begin(os.environ)
        ranks = opts.global_ranks_in_group
        global_rank = ranks[rank] if ranks else rank
        run = _names.of_run(meeting)
        _trace.begin(os.environ, global_rank, run)
    except ValueError as error:
        _settings.refuse(error, meeting)
        raise
    _settings.agree(settings, meeting)
    if global_rank == 0:
        for name, what in _settings.unknown_variables(os.environ):
            _log.warn_once(f"{name} is {what}")
    wanted = _settings.origin("transport", options, os.environ)
    compression = _settings.origin("compression", options, os.environ)
    transport = str(settings["transport"])
    on_host = "auto" if transport == "nccl" else transport
    connection = _transport.connect(on_host, meeting)
    device = _nccl.connect(transport, opts, meeting)
    for name, value in settings.items():
        setattr(options, name, value)
    options._timeout = opts.timeout
    options.group_name = str(opts.group_id)
    options.global_ranks_in_group = opts.global_ranks_in_group
    if rank == 0 and _log.logger.isEnabledFor(logging.INFO):
        chosen = _transport.describe(wanted, compression, connection)
        if device:
            chosen += f"; {_nccl.DEVICE} tensors by {device.name}"
        _log.logger.info("hvd: group %s, %s", opts.group_id, chosen)
    name = _names.of_group(options.group_name, meeting)
    group = _C.ProcessGroupHVD(
        meeting.store, connection.transport, device, options, name, stats_edges
    )
    meeting.end()
    return group


def _make(store: Store, rank: int, size: int, options: Any) -> Any:
    """Make a group of what another one is split, shrunk or merged into, as `create` makes one.

    Args:
        store: of the new group.
        rank: of this process in the new group.
        size: of the new group.
        options: of the new group; the other's but for name, ranks and timeout.
    """
    opts = SimpleNamespace(
        store=store,
        group_rank=rank,
        group_size=size,
        timeout=options._timeout,
        group_id=options.group_name,
        global_ranks_in_group=options.global_ranks_in_group,
    )
    return create(opts, options)


_C.set_maker(_make)


def end() -> None:
    """Shut down all groups, when the program ends, and write what is left of what was recorded."""
    try:
        _C.end_all()
    finally:
        _trace.end()
