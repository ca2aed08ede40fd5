#pragma once

namespace hvd::model {

// Each ends the process where something is wrong.

/// How many small collectives a frame settles: all where every rank has the
/// same ready, and else those that the ranks had agreed on.
void test_frame_track();

} // namespace hvd::model
