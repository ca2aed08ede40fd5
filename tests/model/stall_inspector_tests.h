#pragma once

namespace hvd::model {

// Each ends the process where something is wrong.

/// When a rank that waits compares, logs and ends: at which seconds.
void test_stalls_of_who_waits();

/// When a rank that waits for no collective tells the others.
void test_stalls_of_who_does_not();

/// Each thing that is waited for has a time of its own.
void test_stalls_begin_anew();

} // namespace hvd::model
