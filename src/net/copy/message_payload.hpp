// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/bytes.hpp"

namespace oriel::net {

/// Bytes that a message carries: its own, or borrowed, in one part or two, from memory of somebody
/// who says how long they may be looked at. Who keeps a payload for longer makes them its own
/// first. A copy of a payload has bytes of its own.
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
  // Inlined, gcc 12 takes what a variant does not hold for bytes that are not initialized.
  [[gnu::noinline]] ~Payload() = default;

  std::size_t size() const {
    return is_borrowed() ? borrowed_[0].size() + borrowed_[1].size() : own_.size();
  }
  bool empty() const { return size() == 0; }
  bool is_borrowed() const { return !borrowed_[0].empty(); }
  /// One behind the other; either may be empty.
  std::array<ByteView, 2> parts() const {
    return is_borrowed() ? borrowed_ : std::array<ByteView, 2>{own_, {}};
  }
  /// What is left of the part in which the byte at this place lies; there is one.
  ByteView part_at(std::size_t place) const {
    const auto [first, rest] = parts();
    return place < first.size() ? first.subspan(place) : rest.subspan(place - first.size());
  }

  /// Has them be its own, if they are not.
  void own() {
    if (is_borrowed()) *this = Payload(copied());
  }
  /// All of them in one part, which may be its own then.
  ByteView joined() {
    if (!borrowed_[1].empty()) own();
    return parts()[0];
  }
  /// All of them, which it then no longer has.
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
  std::array<ByteView, 2> borrowed_;  // if the first is empty there are none
};

}  // namespace oriel::net
