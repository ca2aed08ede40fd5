#pragma once

namespace hvd::model {

/// A thread that waits is asleep, one that runs or has ended is not. Ends the
/// process where something is wrong.
void test_thread_clock();

} // namespace hvd::model
