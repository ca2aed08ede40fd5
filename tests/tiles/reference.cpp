#include "reference.h"

#include <algorithm>
#include <cstring>

namespace hvd {

namespace {

constexpr int64_t kUnit = 32; // of the casts

float as_float(Number number, const uint8_t* bytes) {
  if (number == Number::Float32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t code;
  std::memcpy(&code, bytes, sizeof(code));
  return number == Number::Float16 ? decode_half(code) : decode_bfloat16(code);
}

void put(Number number, float value, uint8_t* bytes) {
  if (number == Number::Float32) {
    std::memcpy(bytes, &value, sizeof(value));
    return;
  }
  const uint16_t code =
      number == Number::Float16 ? encode_half(value) : encode_bfloat16(value);
  std::memcpy(bytes, &code, sizeof(code));
}

// Of functions that are always inlined there is no address.
float total(float a, float b) {
  return plus(a, b);
}
float missing(float value, float decoded) {
  return lost(value, decoded);
}

int64_t bytes_of_one(Number number) {
  return number == Number::Float32 ? 4 : 2;
}

} // namespace

int64_t Reference::value_bytes(int64_t count) const {
  if (is_cast(codec_.compression)) {
    return 2 * count;
  }
  return codec_.compression == Compression::Int4 ? (count + 1) / 2 : count;
}

int64_t Reference::scale_bytes(int64_t count) const {
  return is_cast(codec_.compression)
      ? 0
      : (count + codec_.block - 1) / codec_.block * 2;
}

int64_t Reference::padded(int64_t count) const {
  const int64_t unit = is_cast(codec_.compression) ? kUnit : codec_.block;
  return (count + unit - 1) / unit * unit;
}

std::vector<float> Reference::decoded(const Parts& message, int64_t count)
    const {
  Parts whole = message;
  whole.values.resize(value_bytes(padded(count)));
  whole.scales.resize(scale_bytes(padded(count)));
  std::vector<float> values(padded(count));
  (*plain_kernels())[codec_.compression].decode(
      whole.values.data(),
      whole.scales.data(),
      padded(count),
      codec_.block,
      values.data());
  values.resize(count);
  return values;
}

Parts Reference::encoded(
    const std::vector<float>& values,
    std::vector<float>& residual) const {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<float> whole = values;
  whole.resize(padded(count));
  Parts message;
  message.values.resize(value_bytes(padded(count)));
  message.scales.resize(scale_bytes(padded(count)));
  (*plain_kernels())[codec_.compression].encode(
      whole.data(),
      padded(count),
      codec_.block,
      message.values.data(),
      message.scales.data());
  message.values.resize(value_bytes(count));
  if (!residual.empty()) {
    const auto back = decoded(message, count);
    std::transform(
        values.begin(), values.end(), back.begin(), residual.begin(), missing);
  }
  return message;
}

Parts Reference::encode(
    Number number,
    const std::vector<uint8_t>& numbers,
    float factor,
    std::vector<float>& residual) const {
  std::vector<float> values(numbers.size() / bytes_of_one(number));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* const at = numbers.data() + i * bytes_of_one(number);
    values[i] = times(as_float(number, at), factor);
    if (!residual.empty()) {
      values[i] = plus(values[i], residual[i]);
    }
  }
  return encoded(values, residual);
}

std::vector<uint8_t> Reference::decode(
    Number number,
    const Parts& message,
    int64_t count) const {
  const auto values = decoded(message, count);
  std::vector<uint8_t> numbers(count * bytes_of_one(number));
  for (int64_t i = 0; i < count; ++i) {
    put(number, values[i], numbers.data() + i * bytes_of_one(number));
  }
  return numbers;
}

Parts Reference::decode_sum_encode(
    const std::vector<Parts>& sources,
    int64_t count,
    std::vector<float>& residual) const {
  auto sum = decoded(sources.front(), count);
  for (size_t s = 1; s < sources.size(); ++s) {
    const auto more = decoded(sources[s], count);
    std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(), total);
  }
  if (!residual.empty()) {
    std::transform(
        sum.begin(), sum.end(), residual.begin(), sum.begin(), total);
  }
  return encoded(sum, residual);
}

} // namespace hvd
