#pragma once

#include <cstdint>

namespace hvd::model {

// Each ends the process where something is wrong.

/// What is read of a rank's memory after it gave up is no message.
void test_memory_of_who_gave_up();

/// ShmTransport, then TcpTransport, between ranks that are threads, two of
/// each: a random program of exchanges, frames and messages; in some, a rank
/// gives up on the way.
void test_messages(uint64_t seed);

} // namespace hvd::model
