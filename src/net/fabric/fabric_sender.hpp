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

/// Send buffer: one frame that is being filled or is in flight.
struct Send {
  Operation operation;
  std::byte* heads = nullptr;
  void* descriptor = nullptr;  // libfabric's descriptor of the memory at `heads`
  Peer* peer = nullptr;
  Bytes payload;  // payload after the batch; empty if it was copied there
  std::size_t payload_bytes = 0;
  std::size_t batch_bytes = 0;
  std::size_t batch_limit = 0;  // end of the batch; start of a copied payload
};

/// Padding of frames over rxm. rxm sends a message longer than its eager size, and up to eight
/// times as long, in segments. From libfabric 2.0 on, it crashes if a connection ends when only
/// some segments have come. So such messages are padded beyond that size: the receiver then reads
/// them from the sender's memory.
struct Padding {
  std::size_t eager_bytes = SIZE_MAX;  ///< messages up to this size are not padded
  std::size_t bytes = 0;               ///< size to which longer messages are padded
  std::size_t of(std::size_t message) const {
    return message > eager_bytes && message < bytes ? bytes - message : 0;
  }
};

/// Layout of frames that suits the endpoint.
struct SendLayout {
  std::size_t buffer_bytes = 0;
  bool copies_payloads = false;  ///< frames are sent from registered memory, or as one part
  Padding padding;
};

/// Fills frames with messages and sends them. Each frame has a number in its peer's sequence.
class Sender {
 public:
  explicit Sender(End& end) : end_(end) {}

  Status open(const SendLayout& layout);
  /// Adds the message to a frame. Returns false while there is no room; the message is unchanged
  /// then.
  bool send(Peer& peer, WireMessage& message);
  /// Called when there is no room. Returns whether the peer has taken nothing for
  /// Options::timeout; messages to it are lost then.
  bool give_up(Peer& peer);
  /// Sends all frames that hold messages.
  void send_batches();
  void complete(std::uint32_t index);
  void fail(std::uint32_t index, Error failed);
  /// Frees the frames that were in flight in an endpoint that has been closed, and unsent batches
  /// for peers that were cut. Other batches still leave.
  void forget();
  std::size_t under_way() const { return sends_.size() - free_.size(); }

 private:
  bool open_batch(Peer& peer, std::size_t bytes, bool has_payload);
  bool has_free_slot(const Peer& peer) const;
  Send& take_slot(Peer& peer);
  void put_behind(Send& batch, Payload& payload);
  bool send_batch(Peer& peer);
  ssize_t post(Peer& peer, Send& batch);
  void free_slot(Send& send);
  static void lose(Peer& peer, Error failed);

  End& end_;
  SendLayout layout_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<std::byte[]> zeros_;  // padding for frames whose payload is not copied
  std::vector<Send> sends_;
  std::vector<std::uint32_t> free_;
  std::vector<Peer*> with_batch_;  // peers with an unsent batch
};

}  // namespace oriel::net::fabric
