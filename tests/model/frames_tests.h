#pragma once

#include <cstdint>

namespace hvd::model {

/// Rounds of a FrameLane on hosts of many kinds, with delays after the seed:
/// every rank gets what each has given, and a host sends each frame to another
/// once. Ends the process where something is wrong.
void test_frame_lane(uint64_t seed);

} // namespace hvd::model
