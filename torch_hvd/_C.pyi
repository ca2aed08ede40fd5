from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor, device
from torch._C._distributed_c10d import Backend, GatherOptions, Store, Work

class Options:
    """Settings of one process group, for `init_process_group(pg_options=...)` and `new_group`.

    Args:
        timeout: of its operations; c10d's `timeout=` argument takes precedence.
        transport: "auto", "gloo", "mpi", "nccl", "shm", "tcp", "shm+gloo", "shm+mpi" or "shm+tcp".
        fusion_threshold: bytes that all_reduces fused together may have; 0 turns fusion off.
        fusion_cutoff: bytes up to which an all_reduce is fused; a longer one travels alone.
        check: compare what the ranks call before every collective.
        compression: none, fp16, bf16, fp8 (e4m3), fp8_e5m2, int8 or int4; of all_reduces of
            fp32, fp16 and bf16 tensors with SUM, PREMUL_SUM or AVG.
        compression_min_bytes: of a tensor, below which it is not compressed.
        block: values that share a scale: 32, 64, ... 1024; 128 where left out, 32 for int4.
        error_feedback: add what was lost of a tensor the next time it is sent; on for int4 where
            left out.
        stall_check_time: seconds after which a collective, send or recv that waits for ranks is
            logged, with those that are missing and what they wait for; 0 for never.
        stall_shutdown_time: seconds after which it fails, and the group with it; 0 for never.

    What is left out comes from the environment, or is the default: see `torch_hvd._settings`. All
    ranks must have the same, apart from times. Can be copied and pickled; `repr` has what is set.
    """

    transport: str | None
    fusion_threshold: int | None
    fusion_cutoff: int | None
    check: bool | None
    compression: str | None
    compression_min_bytes: int | None
    block: int | None
    error_feedback: bool | None
    stall_check_time: float | None
    stall_shutdown_time: float | None
    _timeout: timedelta
    group_name: str
    global_ranks_in_group: list[int]
    def __init__(
        self,
        *,
        timeout: timedelta = ...,
        transport: str | None = None,
        fusion_threshold: int | None = None,
        fusion_cutoff: int | None = None,
        check: bool | None = None,
        compression: str | None = None,
        compression_min_bytes: int | None = None,
        block: int | None = None,
        error_feedback: bool | None = None,
        stall_check_time: float | None = None,
        stall_shutdown_time: float | None = None,
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Options: ...

class ProcessGroupHVD(Backend):
    """The c10d backend "hvd". Made by `torch_hvd._backend.create`.

    Args:
        store: keys are this group's own.
        transport: of all its ranks; taken over.
        group: name of the group, for messages.
        stats_edges: upper ends, in bytes, of the rows of its statistics, rising.
    """

    def __init__(
        self,
        store: Store,
        transport: Transport,
        device: DeviceTransport | None,
        options: Options,
        group: str,
        stats_edges: Sequence[float],
    ) -> None: ...
    @property
    def options(self) -> Options: ...  # type: ignore[override]
    @property
    def store(self) -> Store: ...
    @property
    def transport(self) -> str:
        """What carries its messages, as "shm", "shm+tcp+nccl" or, alone, "none"."""

    def gather_into_tensor(self, output: Tensor, input: Tensor, opts: GatherOptions) -> Work:
        """Gather `input` of every rank to `output` of the root, which is `size` times as large."""

    def _set_default_timeout(self, timeout: timedelta) -> None: ...
    def perform_nocolor_split(self, device: device) -> None: ...

def set_maker(maker: Callable[[Store, int, int, Options], Backend]) -> None:
    """Have `split`, `shrink` and `merge` call `maker(store, rank, size, options)`."""

class Transport:
    """Ranks that are connected. What takes one over leaves nothing of it here."""

    @property
    def name(self) -> str: ...

def solo_transport() -> Transport:
    """Of a group of one."""

def gloo_transport(gloo: Backend) -> Transport:
    """Over a connected ProcessGroupGloo that nobody else uses."""

def tcp_transport(
    rank: int, sockets: Sequence[Sequence[int]], ranks_per_core: float, patience: timedelta
) -> Transport:
    """Over TCP sockets by rank, connected, non-blocking and taken over; none for the rank itself.

    Each rank has as many for each, its rails; long messages are spread over them.
    `ranks_per_core`: how many ranks of this host share a core. `patience`: a host that answers
    nothing for longer is lost.
    """

def routed_transport(near: Transport | None, far: Transport, hosts: Sequence[int]) -> Transport:
    """Several hosts with several ranks.

    Args:
        near: of the ranks of this host; taken over. None if there is one.
        far: of all ranks; taken over.
        hosts: by rank, the number of its host.
    """

class DeviceTransport:
    """A backend of c10d, that nobody else uses, for tensors on one kind of device, as "cuda"."""

    def __init__(self, backend: Backend, device: str) -> None: ...
    @property
    def name(self) -> str: ...

class ShmRank:
    """What `shm_transport` needs to know of a rank.

    Args:
        number: of the rank in its group.
        segment: file descriptor of the memory that the rank makes; stays the caller's.
        pid: of its process as seen from here; -1 for this rank itself.
        life: file descriptor that polls readable once it is gone; for this rank, what the others
            hear its own end by. `shm_transport` takes it over, also when that fails.
        reads_memory: whether it can read the memory of this process.
    """

    def __init__(
        self, number: int, segment: int, pid: int, life: int, reads_memory: bool
    ) -> None: ...

def shm_transport(place: int, ranks: Sequence[ShmRank], ranks_per_core: float) -> Transport:
    """Of ranks that share memory; this one is at `place` among them. `ranks_per_core`: how many of
    them share a core.
    """

def shm_segment_bytes(size: int) -> int:
    """The length of a segment in a group of `size` ranks."""

def initialise_shm_segment(segment: int, size: int) -> None:
    """Make a segment that is all zeros ready for the other ranks; by the rank that made it."""

def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """A process's memory; None where it cannot be read from here."""

def allow_reading_memory() -> None:
    """Let any process of this user read this one's memory, where only its ancestors could."""

class MpiLibrary:
    """A libmpi that is open."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str:
        """With its version, as in "MPICH 5.0.2"."""
    @property
    def abi(self) -> str: ...
    @property
    def speaks_pmi(self) -> bool:
        """Whether it can start among processes that no launcher has started."""

class MpiPlace:
    """Where this process is in the MPI world."""

    @property
    def world(self) -> str:
        """The name of a world that `start_unlaunched_mpi` has made, else empty."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def any_threads(self) -> bool:
        """Whether threads may call at once; else they take turns."""
    @property
    def cuda_aware(self) -> bool:
        """Whether the library takes the memory of CUDA devices."""

class MpiRank:
    """What `mpi_transport` needs to know of a rank.

    Args:
        number: of the rank in the MPI world.
        life: file descriptor that polls readable once its process is gone; taken over. -1 for this
            rank and for those of other hosts.
        by_tcp: it is on another host, and no network is known but that.
    """

    def __init__(self, number: int, life: int, by_tcp: bool) -> None: ...

def mpi_transport(
    rank: int,
    ranks: Sequence[MpiRank],
    tag: int,
    ranks_per_core: float,
    cuda_aware: bool,
    timeout: timedelta,
) -> Transport:
    """Of a part of the MPI world, whose processes all make it now.

    Args:
        rank: of this process among `ranks`.
        tag: an even one, the same on every rank, of no other group that is being made.
        ranks_per_core: how many ranks of this host share a core.
        cuda_aware: the library is, on every rank.
        timeout: for all to have come.

    Raises:
        RuntimeError: MPI has failed, not all came in time, or one of this host has died.
    """

def mpi_is_loaded(name: str) -> bool:
    """Whether a library of that file name is open in this process."""

def open_mpi(candidates: Sequence[str]) -> MpiLibrary:
    """Open the first file or library name that there is; what MPI runs with already stays.

    Raises:
        ValueError: there is none, or it is no MPI that is known here.
    """

def mpi_place() -> MpiPlace | None:
    """None as long as nobody has started MPI. After `open_mpi`."""

def start_launched_mpi() -> None:
    """Start MPI among the processes of a launcher; blocks until all do.

    Raises:
        RuntimeError: MPI's own words.
    """

def start_unlaunched_mpi(
    store: Store, rank: int, size: int, name: str, mapping: str, timeout: timedelta
) -> None:
    """Start MPI among ranks that meet in a store; blocks until all do. After `open_mpi`.

    Args:
        store: its keys are this world's own.
        name: of the world, and of no other one ever.
        mapping: where the ranks are, as PMI_process_mapping has it.
        timeout: for the ranks to meet.

    Raises:
        RuntimeError: MPI's own words.
    """

def end_all() -> None:
    """Shut down every open group of this process, unless a daemon thread has a collective there."""

def override_compression(name: str | None) -> str | None:
    """Takes the place of every group's compression for what this thread calls; None: of none.

    Returns what was in place.
    """

def statistics() -> list[dict[str, Any]]:
    """What each group of this process has counted; see `torch_hvd.statistics`."""

def start_timeline(path: str, rank: int, run: str) -> None:
    """Write the timeline of this process to the file `path`. RuntimeError if that cannot be.

    Args:
        rank: what the process is called in the picture.
        run: what the files of one run have in common.
    """

def stop_timeline() -> None:
    """End the timeline's file, if one is open.

    Raises:
        RuntimeError: not all of it could be written.
    """

def encode(
    tensor: Tensor,
    compression: str,
    block: int = 128,
    factor: float = 1.0,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """factor * tensor (+ residual) for the wire, as flat uint8.

    Args:
        tensor: float32, float16 or bfloat16, contiguous, on CPU.
        compression: "fp16", "bf16", "fp8", "fp8_e5m2", "int8" or "int4".
        block: values that share a scale, a power of two from 32 to 1024; fp16 and bf16 have none.
        residual: float32, as many; becomes what was lost.
        out: uint8 of `encoded_bytes(...)`, to write into.

    ValueError for anything else.
    """

def decode(bytes: Tensor, compression: str, block: int = 128, *, out: Tensor) -> Tensor:
    """What `encode` made of `out.numel()` values, written into `out`, which is returned.

    ValueError if that many do not take as many bytes.
    """

def decode_sum_encode(
    sources: Sequence[Tensor],
    compression: str,
    block: int = 128,
    *,
    result: Tensor,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of the decoded sources (+ residual), encoded; and `result`, what that decodes to.

    Summed in float32, from the first source on.
    """

def encoded_bytes(count: int, compression: str, block: int = 128) -> int:
    """The length of an encoded message of `count` values."""

def codec_parameters(
    compression: str, block: int | None, error_feedback: bool | None
) -> tuple[int, bool]:
    """What a group with these settings has for block and error feedback."""

class Residual:
    """What encoding has lost so far on this rank, flat and float32; None before anything was."""

    contribution: Tensor | None
    shard: Tensor | None  # of the sum that this rank has made

class ErrorFeedback:
    """Which residual belongs to which tensor, see csrc/engine/error_feedback.h."""

    def __init__(self) -> None: ...
    def begin(self, tensor: Tensor, compression: str, block: int) -> Residual:
        """That of `tensor`, which is averaged now; a new one if it was not in an earlier step."""
    def end(self, residual: Residual, sum: Tensor) -> None:
        """To be called with the flat sum of the tensor that has this residual."""

def set_device_kernels(device: str, kernels: object) -> None:
    """Take the codecs' kernels for tensors of a kind of device, such as "cuda", from a capsule."""

def has_device_kernels(device: str) -> bool:
    """Whether there are some; for the host always, for CUDA once `torch_hvd._cuda` is imported."""

# The kernels of a device as the collectives call them, for tests and benchmarks. All tensors are
# contiguous and on that device, and work is put on its current stream. In a message each tensor
# begins a block of its own; ValueError for sizes that do not fit, and without kernels.

def encode_pieces(
    tensors: Sequence[Tensor],
    message: Tensor,
    compression: str,
    block: int = 128,
    factor: float = 1.0,
    residuals: Sequence[Tensor] = (),
) -> None:
    """factor * tensors (+ residuals) into one message, uint8.

    Args:
        tensors: all float32, float16 or bfloat16.
        residuals: float32, as many; they become what was lost.
    """

def decode_pieces(
    message: Tensor, tensors: Sequence[Tensor], compression: str, block: int = 128
) -> None:
    """The other way."""

def sum_messages(
    sources: Sequence[Tensor],
    out: Tensor,
    count: int,
    compression: str,
    block: int = 128,
    residual: Tensor | None = None,
) -> None:
    """The sum of messages of `count` values, whole blocks, in float32 (+ residual), encoded.

    `out` may be one of the sources.
    """

def copy_pieces(to: Sequence[Tensor], from_: Sequence[Tensor]) -> None:
    """Each tensor to the one of that place, of the same dtype and length."""

def simd() -> str:
    """The instruction set that the codecs use: "plain", "avx2" or "avx512"."""

def simd_names() -> list[str]:
    """Those that this processor has, widest last."""

def use_simd(name: str) -> None:
    """Has the codecs use another one of `simd_names()`, for tests."""
