// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "net/fabric/fabric_end.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::net::fabric {

/// Receives frames into buffers, puts them into the order of their senders, and yields their
/// messages.
class Receiver {
 public:
  explicit Receiver(End& end) : end_(end) {}

  Status open(std::size_t buffer_bytes);
  /// Posts all buffers that hold no frame; those of an endpoint that was closed are not posted.
  void post_free();
  /// Posts what libfabric had no room for.
  void post_again();
  /// A frame has come.
  void complete(std::uint32_t buffer, std::size_t bytes);
  /// `error` as in the completion's.
  void fail(std::uint32_t buffer, int error, Error failed);
  /// Goes on without frames that have not come in time, or cannot come any more.
  void give_up_missing();
  /// The next message, if there is one.
  bool take(WireMessage& message);
  void forget(Peer& peer);
  void forget_all() { arrived_.clear(); }

  bool has_arrived() const { return !arrived_.empty(); }
  /// Returns whether nothing has come and no buffer waits to be posted.
  bool is_idle() const { return arrived_.empty() && unposted_.empty() && waiting_peers_ == 0; }

 private:
  struct Buffer {
    Operation operation;
    std::byte* memory = nullptr;
  };
  struct Arrived {
    Peer* peer = nullptr;
    std::uint32_t buffer = 0;
    FrameHead head;
    std::size_t taken = 0;    // of the batch
    bool has_payload = true;  // that no message has had yet
  };

  bool post(std::uint32_t buffer);
  void accept(Peer& peer, std::uint32_t buffer, const FrameHead& head);
  void take_early(Peer& peer);
  Result<WireMessage> read(Arrived& from);

  End& end_;
  std::size_t buffer_bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Buffer> buffers_;
  void* descriptor_ = nullptr;
  std::vector<std::uint32_t> unposted_;  // libfabric had no room
  std::size_t posted_ = 0;
  std::deque<Arrived> arrived_;
  std::size_t waiting_peers_ = 0;
};

}  // namespace oriel::net::fabric
