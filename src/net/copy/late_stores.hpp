// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "base/bytes.hpp"
#include "base/deadline.hpp"

namespace oriel::net {

/// Stores to this side's memory that are on their way: a model of a GPU whose memory may show what
/// a NIC has written only after the completion that tells of it. They land in order.
class LateStores {
 public:
  void add(std::byte* to, Bytes bytes, TimePoint due) {
    stores_.push_back({to, std::move(bytes), due});
  }
  /// Lands what is due. Whether there was anything.
  bool land(TimePoint now);
  /// Lands all, as a read of the memory by the NIC would: for dumps, and before memory is given
  /// back.
  void land_all();

 private:
  struct Store {
    std::byte* to;
    Bytes bytes;
    TimePoint due;
  };
  std::deque<Store> stores_;
};

}  // namespace oriel::net
