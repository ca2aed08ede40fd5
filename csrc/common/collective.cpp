#include "common/collective.h"

#include <c10/core/ScalarType.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>

namespace hvd {

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit
/// changes half of the output bits.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

auto fields(const Signature& s) {
  return std::tie(
      s.verb, s.op, s.dtype, s.device, s.root, s.count, s.counts_hash, s.codec);
}

} // namespace

bool Signature::operator==(const Signature& other) const {
  return fields(*this) == fields(other);
}

uint64_t Signature::hash(uint64_t seq) const {
  const auto word = static_cast<uint64_t>(verb) |
      static_cast<uint64_t>(op) << 8 | static_cast<uint64_t>(dtype) << 16 |
      static_cast<uint64_t>(device) << 24 |
      static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  const auto codec_word = static_cast<uint64_t>(codec.compression) |
      static_cast<uint64_t>(codec.error_feedback) << 8 |
      static_cast<uint64_t>(static_cast<uint32_t>(codec.block)) << 16;
  uint64_t hash = mix(seq);
  for (const auto part :
       {word, static_cast<uint64_t>(count), counts_hash, codec_word}) {
    hash = mix(hash ^ part);
  }
  return hash;
}

std::string Signature::describe() const {
  std::string text = name(verb);
  text += '(';
  if (verb != Verb::Barrier) {
    text += c10::getDtypeNames(dtype).first;
    if (verb != Verb::Alltoall) {
      text += '[' + std::to_string(count) + ']';
    }
    if (op != c10d::ReduceOp::UNUSED) {
      text.append(", ").append(name(op));
    }
    if (root >= 0) {
      text += ", root=" + std::to_string(root);
    }
    if (codec.compression != Compression::None) {
      text.append(", ").append(name(codec.compression));
    }
  }
  return text + ')';
}

int64_t tensor_bytes(const Collective& collective) {
  const auto verb = collective.signature.verb;
  if (verb == Verb::Alltoall || verb == Verb::SparseAllreduce) {
    int64_t bytes = 0;
    for (const auto& input : collective.inputs) {
      bytes += input.is_sparse()
          ? input._indices().nbytes() + input._values().nbytes()
          : input.nbytes();
    }
    return bytes;
  }
  const auto element =
      static_cast<int64_t>(c10::elementSize(collective.signature.dtype));
  return collective.signature.count * element;
}

bool only_moves(Verb verb) {
  switch (verb) {
    case Verb::Broadcast:
    case Verb::Allgather:
    case Verb::Gather:
    case Verb::Scatter:
    case Verb::Alltoall:
      return true;
    default:
      return false;
  }
}

const char* title(Verb verb) {
  switch (verb) {
    case Verb::Allreduce:
      return "hvd:all_reduce";
    case Verb::SparseAllreduce:
      return "hvd:all_reduce_sparse";
    case Verb::Reduce:
      return "hvd:reduce";
    case Verb::Broadcast:
      return "hvd:broadcast";
    case Verb::Allgather:
      return "hvd:all_gather";
    case Verb::Gather:
      return "hvd:gather";
    case Verb::Scatter:
      return "hvd:scatter";
    case Verb::ReduceScatter:
      return "hvd:reduce_scatter";
    case Verb::Alltoall:
      return "hvd:all_to_all";
    case Verb::Barrier:
      return "hvd:barrier";
  }
  return "hvd:unknown collective";
}

const char* name(Verb verb) {
  return title(verb) + std::string_view("hvd:").size();
}

const char* name(ReduceOp op) {
  static constexpr std::array<const char*, 10> kNames = {
      "SUM",
      "AVG",
      "PRODUCT",
      "MIN",
      "MAX",
      "BAND",
      "BOR",
      "BXOR",
      "PREMUL_SUM",
      "UNUSED"};
  return op < kNames.size() ? kNames[op] : "unknown op";
}

} // namespace hvd
