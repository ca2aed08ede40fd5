#pragma once

namespace hvd::model {

// Each ends the process where something is wrong.

/// Hosts by table.
void test_hosts();

/// Lists of ranks in messages.
void test_rank_names();

/// plan() and is_small() at their limits.
void test_plan();

/// codec_for() by table.
void test_codec_for();

/// Which tensors ErrorFeedback takes for those of the step before.
void test_error_feedback();

/// However many segments an all_reduce has, few are on the way.
void test_window();

/// The same of one whose numbers are encoded.
void test_window_of_encoded();

/// Large collectives that every rank has ready advance before the first of them
/// is finished.
void test_ahead();

} // namespace hvd::model
