// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "oriel/error.hpp"

namespace oriel {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

/// Builds a message: little-endian integers, length-prefixed strings and blobs.
class ByteWriter {
 public:
  /// `expected`: estimated size of the message in bytes.
  explicit ByteWriter(std::size_t expected = 0) { bytes_.reserve(expected); }
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) ByteWriter& put(T value) {
    return put_raw(std::as_bytes(std::span(&value, 1)));
  }
  // Not inlined: gcc 12 would otherwise warn of an overflow on the path of an empty vector.
  [[gnu::noinline]] ByteWriter& put_raw(ByteView raw) {
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  ByteWriter& put_blob(ByteView raw) {
    put(static_cast<std::uint32_t>(raw.size()));
    return put_raw(raw);
  }
  ByteWriter& put_string(std::string_view text) { return put_blob(std::as_bytes(std::span(text))); }
  Bytes take() { return std::move(bytes_); }
  std::size_t size() const { return bytes_.size(); }

 private:
  Bytes bytes_;
};

/// Parses a received message. A read past the end, or a blob longer than the remaining bytes, makes
/// the reader bad for good. From then on it yields zeros and empty views, and finish() returns an
/// error. So a parser reads all its fields first and checks once.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : left_(bytes), bytes_(bytes.size()) {}

  template <typename T>
  requires(std::is_integral_v<T>) T get() {
    T value{};
    const ByteView raw = get_raw(sizeof value);
    if (raw.size() == sizeof value) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  /// Returns the next `count` bytes as a view into the message; empty if fewer remain.
  ByteView get_raw(std::size_t count) {
    if (count > left_.size()) {
      good_ = false;
      left_ = {};
      return {};
    }
    const ByteView raw = left_.first(count);
    left_ = left_.subspan(count);
    return raw;
  }
  ByteView get_blob() { return get_raw(get<std::uint32_t>()); }
  std::string get_string() {
    const ByteView raw = get_blob();
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  bool good() const { return good_; }
  std::size_t left() const { return left_.size(); }
  /// Returns success if every read was inside the message and no bytes remain.
  Status finish(std::string_view what) const {
    if (good_ && left_.empty()) return {};
    const std::string bytes = std::to_string(bytes_);
    return Error(ErrorCode::remote,
                 std::string(what) + ": the message has " + bytes +
                     (good_ ? " bytes, " + std::to_string(left_.size()) + " more than expected"
                            : std::string(" bytes, fewer than expected")));
  }

 private:
  ByteView left_;
  std::size_t bytes_;  // size of the whole message
  bool good_ = true;
};

}  // namespace oriel
