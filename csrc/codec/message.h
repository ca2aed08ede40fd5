#pragma once

#include "codec/codec.h"

#include <c10/util/Exception.h>

#include <cstdint>

namespace hvd {

inline int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Where the bytes of one message are, by the values it holds.
class Message {
 public:
  /// Over bytes of another kind than Encoded, for whole blocks and a rest.
  Message(Codec codec, uint8_t* values, uint8_t* scales)
      : codec_(codec), count_(0), values_(values), scales_(scales) {}

  Message(Codec codec, const Encoded& encoded, int64_t count)
      : codec_(codec),
        count_(count),
        values_(static_cast<uint8_t*>(encoded.bytes_to_move().data_ptr())),
        scales_(values_ + round_up(value_bytes(codec, count), 2)) {
    const int64_t expected = encoded_bytes(codec, count);
    TORCH_CHECK_VALUE(
        encoded.bytes_to_move().numel() == expected,
        "hvd: ",
        count,
        " values as ",
        name(codec.compression),
        " take ",
        expected,
        " bytes, not ",
        encoded.bytes_to_move().numel());
  }

  /// The byte between values and scales, if there is one, travels too.
  void clear_gap() const {
    for (uint8_t* byte = values(count_); byte < scales_; ++byte) {
      *byte = 0;
    }
  }

  /// Of the value `begin`, the first of a block, and those behind it.
  uint8_t* values(int64_t begin) const {
    return values_ + value_bytes(codec_, begin);
  }
  uint8_t* scales(int64_t begin) const {
    return scales_ + scale_bytes(codec_, begin);
  }

  static int64_t value_bytes(Codec codec, int64_t count) {
    if (is_cast(codec.compression)) {
      return 2 * count;
    }
    return codec.compression == Compression::Int4 ? (count + 1) / 2 : count;
  }
  static int64_t scale_bytes(Codec codec, int64_t count) {
    return is_cast(codec.compression)
        ? 0
        : 2 * ((count + codec.block - 1) / codec.block);
  }

 private:
  const Codec codec_;
  const int64_t count_;
  uint8_t* const values_;
  uint8_t* const scales_;
};

} // namespace hvd
