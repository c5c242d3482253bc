// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>

#include "net/copy/copy_engine.hpp"
#include "net/soft/posted_wqes.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/sent_requests.hpp"

namespace oriel::net {

/// Data of responses, on its way to the memory that the WQEs name. Kept in the order of the
/// responses; one for which there is room may be stored before an earlier one that lacks room.
class Landings {
 public:
  Landings(SendEnd& end, PostedWqes& posted) : end_(end), posted_(posted) {}

  bool empty() const { return landings_.empty(); }
  /// Stores the data of a response to a piece of a read or atomic. The piece ends when the data is
  /// there.
  void land(PostedWqe& wqe, const SentRequest& request, WireResponse& response);
  /// Stores what could not be stored before. Returns whether any landing has ended.
  bool progress();
  void forget() { landings_.clear(); }

 private:
  struct Landing {
    std::uint64_t serial = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    MemoryPlace place = MemoryPlace::host;
    Storing storing;
    MoveTicket ticket = 0;
    bool started = false;
  };
  void begin(Landing& landing, PostedWqe& wqe);

  SendEnd& end_;
  PostedWqes& posted_;
  std::deque<Landing> landings_;
};

}  // namespace oriel::net
