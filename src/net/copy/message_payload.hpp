// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/bytes.hpp"

namespace oriel::net {

/// Payload of a message: own bytes, or bytes borrowed in one or two parts. The owner says how long
/// borrowed bytes stay valid. To keep a payload for longer, call own() first. A copy of a payload
/// owns its bytes.
class Payload {
 public:
  Payload() = default;
  Payload(Bytes bytes) : own_(std::move(bytes)) {}  // NOLINT(google-explicit-constructor)
  static Payload borrow(ByteView first, ByteView rest = {}) {
    Payload made;
    made.borrowed_ = {first.empty() ? rest : first, first.empty() ? ByteView() : rest};
    return made;
  }

  Payload(Payload&& other) noexcept
      : own_(std::move(other.own_)), borrowed_(std::exchange(other.borrowed_, {})) {}
  Payload& operator=(Payload&& other) noexcept {
    own_ = std::move(other.own_);
    other.own_.clear();
    borrowed_ = std::exchange(other.borrowed_, {});
    return *this;
  }
  Payload(const Payload& other) : own_(other.copied()) {}
  Payload& operator=(const Payload& other) {
    if (this != &other) *this = Payload(other);
    return *this;
  }
  // Not inlined: otherwise gcc 12 warns of uninitialized bytes in the inactive member of a variant.
  [[gnu::noinline]] ~Payload() = default;

  std::size_t size() const {
    return is_borrowed() ? borrowed_[0].size() + borrowed_[1].size() : own_.size();
  }
  bool empty() const { return size() == 0; }
  bool is_borrowed() const { return !borrowed_[0].empty(); }
  /// Returns the parts in order; either may be empty.
  std::array<ByteView, 2> parts() const {
    return is_borrowed() ? borrowed_ : std::array<ByteView, 2>{own_, {}};
  }
  /// Returns the rest of the part that holds the byte at `place`, which must exist.
  ByteView part_at(std::size_t place) const {
    const auto [first, rest] = parts();
    return place < first.size() ? first.subspan(place) : rest.subspan(place - first.size());
  }

  /// Copies borrowed bytes, so that the payload owns them.
  void own() {
    if (is_borrowed()) *this = Payload(copied());
  }
  /// Returns all bytes as one part; takes ownership if there are two parts.
  ByteView joined() {
    if (!borrowed_[1].empty()) own();
    return parts()[0];
  }
  /// Moves all bytes out; the payload is empty then.
  Bytes take() {
    own();
    return std::exchange(own_, {});
  }

  friend bool operator==(const Payload& a, const Payload& b) {
    return a.size() == b.size() && a.copied() == b.copied();
  }

 private:
  Bytes copied() const {
    Bytes made;
    made.reserve(size());
    for (const ByteView part : parts()) made.insert(made.end(), part.begin(), part.end());
    return made;
  }

  Bytes own_;
  std::array<ByteView, 2> borrowed_;  // if the first is empty, nothing is borrowed
};

}  // namespace oriel::net
