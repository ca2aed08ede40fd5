#pragma once

#include <cstdint>

namespace hvd::model {

// Each ends the process where something is wrong.

/// What is read of a rank's memory after it gave up is no message.
void test_memory_of_who_gave_up();

/// What is read in its sender's arena stays there for as long as that takes.
void test_messages_that_stay_where_they_are();

/// But what nobody reads there yet makes room for what somebody waits for.
void test_room_for_the_message_that_is_waited_for();

/// A rank that waits for something else takes in what has a receive, or who
/// sends it could not go on.
void test_short_messages_that_nobody_waits_for();

/// Over TCP, where both ranks give up at once: this one reads the other's last
/// word while a thread sleeps that would have read it.
void test_abort_wakes_who_waits();

/// Over TCP, of more ranks than one look at the sockets shows: what they have
/// sent counts, though the first has given up since.
void test_what_has_come_before_a_farewell();

/// A rank hears who has timed out from whoever gives up because of that.
void test_whose_time_was_up();

/// ShmTransport, then TcpTransport, between ranks that are threads, two of
/// each: a random program of exchanges, frames and messages; in some, a rank
/// gives up on the way.
void test_messages(uint64_t seed);

} // namespace hvd::model
