#pragma once

#include "transport/transport.h"

#include <array>
#include <memory>
#include <vector>

namespace hvd::model {

/// The transport of each rank, all in this process.
using Group = std::vector<std::unique_ptr<Transport>>;

/// Files for the segments of so many ranks, of the right length and all zeros.
/// Who asks closes them.
std::vector<int> segment_files(int size);

/// Ranks that share memory. `attach`: they read each other's.
Group share_memory(int size, bool attach);

/// The two ends of a connection, as TcpTransport takes them over.
std::array<int, 2> socket_pair();

/// Ranks that are connected by sockets, as over TCP by so many networks.
/// `cramped`: so short that they are full most of the time.
Group connect(int size, int rails, bool cramped);

} // namespace hvd::model
