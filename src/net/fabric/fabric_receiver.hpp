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

/// Receives frames into buffers, orders them by their senders' sequence numbers, and returns their
/// messages.
class Receiver {
 public:
  explicit Receiver(End& end) : end_(end) {}

  Status open(std::size_t buffer_bytes);
  /// Posts all buffers that hold no frame, after the endpoint was opened or reopened.
  void post_free();
  /// Posts the buffers for which libfabric had no room.
  void post_again();
  /// Takes a frame of `bytes` bytes that has arrived in the buffer.
  void complete(std::uint32_t buffer, std::size_t bytes);
  /// Handles a receive that has failed. `error` is the completion's error number.
  void fail(std::uint32_t buffer, int error, Error failed);
  /// Skips frames that have not come in time, or cannot come any more.
  void give_up_missing();
  /// Returns the next message, if there is one.
  bool take(WireMessage& message);
  void forget(Peer& peer);
  void forget_all() { arrived_.clear(); }

  bool has_arrived() const { return !arrived_.empty(); }
  /// Returns whether no frame has come and no buffer waits to be posted.
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
    std::size_t taken = 0;    // bytes of the batch that were read
    bool has_payload = true;  // no message has used the payload yet
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
  std::vector<std::uint32_t> unposted_;  // libfabric had no room for these
  std::size_t posted_ = 0;
  std::deque<Arrived> arrived_;
  std::size_t waiting_peers_ = 0;
};

}  // namespace oriel::net::fabric
