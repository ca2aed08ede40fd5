#pragma once

#include <cstdint>

namespace hvd::model {

// Each ends the process where something is wrong.

/// shm::Arena against a list of what is taken.
void test_arena(uint64_t seed);

/// Nothing that is rung for is slept through.
void test_bell();

/// shm::Ring: every letter once, in order, whole.
void test_ring();

/// What is read of a rank's memory after it gave up is no message.
void test_memory_of_who_gave_up();

/// ShmTransport between ranks that are threads, two of each: a random program
/// of exchanges, frames and messages; in some, a rank gives up on the way.
void test_shm(uint64_t seed);

} // namespace hvd::model
