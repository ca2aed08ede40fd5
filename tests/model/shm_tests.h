#pragma once

#include <cstdint>

namespace hvd::model {

// Each ends the process where something is wrong.

/// shm::Arena against a list of what is taken.
void test_arena(uint64_t seed);

/// shm::StoresChoice uses what costs less, also when that changes, and goes on
/// to try the other.
void test_stores_choice(uint64_t seed);

/// shm::StagingCopy copies all bytes and no others, by either stores.
void test_staging_copy(uint64_t seed);

/// Nothing that is rung for is slept through.
void test_bell();

/// shm::Ring: every letter once, in order, whole.
void test_ring();

/// shm::Outbox rings this rank's own bell when a message leaves that has had to
/// wait for room, and for no other.
void test_outbox();

} // namespace hvd::model
