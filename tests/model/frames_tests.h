#pragma once

#include <cstdint>

namespace hvd::model {

/// The steps of frames on hosts of many kinds, played without a transport:
/// every rank ends with each frame once, and of many ranks none sends many
/// messages. Ends the process where something is wrong.
void test_frame_steps();

/// Rounds of a FrameLane, and of a RowExchange, on hosts of many kinds, with
/// delays after the seed: every rank gets what each has given, in as few
/// messages between hosts as there have to be. Ends the process where something
/// is wrong.
void test_exchanges_of_frames(uint64_t seed);

} // namespace hvd::model
