#pragma once

namespace hvd {

/// How many forks lie between the program's first process and this one. Threads
/// and connections made at another count belong to another process.
int fork_depth();

} // namespace hvd
