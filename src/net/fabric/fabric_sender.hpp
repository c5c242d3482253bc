// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/fabric/fabric_end.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::net::fabric {

/// One frame that is filled or under way.
struct Send {
  Operation operation;
  std::byte* heads = nullptr;
  void* descriptor = nullptr;  // of the memory at `heads`
  Peer* peer = nullptr;
  Bytes payload;  // of one message of the batch; empty if it has been copied behind that
  std::size_t payload_bytes = 0;
  std::size_t batch_bytes = 0;
  std::size_t batch_limit = 0;  // where the payload begins, if that has been copied
};

/// rxm cuts messages that are longer than its eager size, and up to eight times as long, into
/// segments, and from libfabric 2.0 on crashes if a connection ends while only some of a message's
/// have come. So such messages are padded: longer ones it has read from the sender's memory.
struct Padding {
  std::size_t eager_bytes = SIZE_MAX;  ///< not padded up to here
  std::size_t bytes = 0;               ///< what is longer has at least so many
  std::size_t of(std::size_t message) const {
    return message > eager_bytes && message < bytes ? bytes - message : 0;
  }
};

/// Layout of frames, by what the endpoint can do.
struct SendLayout {
  std::size_t buffer_bytes = 0;
  bool copies_payloads = false;  ///< frames are sent from registered memory, or as one part
  Padding padding;
};

/// Fills frames with messages and sends them. Frames have a place in the sequence of their peer.
class Sender {
 public:
  explicit Sender(End& end) : end_(end) {}

  Status open(const SendLayout& layout);
  /// Returns false while there is no room; the message is as before then.
  bool send(Peer& peer, WireMessage& message);
  /// Called where there is no room. Returns whether the peer has taken nothing for as long as
  /// Options::patience; what is meant for it is lost then.
  bool give_up(Peer& peer);
  /// Sends what is ready to leave.
  void send_batches();
  void complete(std::uint32_t index);
  void fail(std::uint32_t index, Error failed);
  /// Forgets frames that were under way in an endpoint that has been closed, and batches for peers
  /// that were cut; other batches still leave.
  void forget();
  std::size_t under_way() const { return sends_.size() - free_.size(); }

 private:
  bool make_room(Peer& peer, std::size_t bytes, bool has_payload);
  bool has_room(const Peer& peer) const;
  Send& take_slot(Peer& peer);
  void put_behind(Send& batch, Payload& payload);
  bool send_batch(Peer& peer);
  ssize_t post(Peer& peer, Send& batch);
  void free_slot(Send& send);
  static void lose(Peer& peer, Error failed);

  End& end_;
  SendLayout layout_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<std::byte[]> zeros_;  // to pad with, where payloads are not copied
  std::vector<Send> sends_;
  std::vector<std::uint32_t> free_;
  std::vector<Peer*> with_batch_;  // peers that have one
};

}  // namespace oriel::net::fabric
