// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "boot/auth/secret.hpp"
#include "boot/auth/socket_address.hpp"
#include "net/wire/queue_setup.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net {

struct FabricTable;

/// Wire between hosts: carries the NICs' messages as messages of libfabric. It is made for efa,
/// verbs and tcp (fabric_provider.hpp has the choice). Neither efa nor verbs has run
/// (docs/notes/wire.md).
///
/// Completions. A NIC answers what it has executed, and retransmits a request that is not answered.
/// So a send completion only has to say that the memory of the send is free again. Delivery is
/// confirmed by the answer. Data and signals both travel as messages, and the target's NIC executes
/// them in the order of its queue. So no ordering by completions is needed.
///
/// Order. Short messages overtake long ones inside libfabric's providers. So each frame carries its
/// number in the sequence of its sender. A frame that comes early is held back in the buffer in
/// which it arrived. If a frame is missing (its connection has broken), the later ones are
/// delivered after `timeout`. If no receive buffer is posted any more, they are delivered at once.
/// Missing frames that come after that are dropped, and so are duplicates.
///
/// Trust. Each frame is authenticated by a keyed hash (fabric_frame.hpp). A frame without a valid
/// MAC is dropped; it costs its receiver one buffer for the time of the check. Addresses must
/// come over a channel that is itself authenticated, such as the bootstrap's links.
///
/// Progress is made only inside send(), receive(), end_turn() and flush(). So the owner's NIC has
/// to be driven even while nobody sends (FabricSleeper says when). It has to be driven until all
/// peers have ended, since an answer that send() has taken may need more calls to leave. Before a
/// wire is destroyed, the ranks should agree over the bootstrap that all of them are done. Messages
/// still in flight then are lost; the destructor does not wait for them.
///
/// Rendezvous. Long writes do not travel in messages where the provider can read a peer's memory.
/// The message then says where the bytes are, and the target's NIC reads them to their place
/// (can_read() and the calls after it). A key of libfabric authorizes the read: random, of up to
/// 64 bits, where the provider leaves the choice. The key is valid for the bytes of this write
/// until the write is answered. So whoever learns the key can read only bytes that would have
/// crossed the network anyway. Rendezvous is not used if either end wants payloads authenticated.
///
/// Batches. Messages to one peer leave in one frame, at end_turn() or when receive() has to poll. A
/// frame holds as many small messages as fit and one longer one. So a put, its signal and the
/// answers to earlier requests cost as much as one message.
///
/// Memory is bounded: `receives` buffers of one frame each, untouched until used, and `sends`
/// frames in flight. One peer gets no more send buffers than are left for the others. Further
/// arrivals wait in the provider; the requests that peers' queues may have unanswered bound them.
///
/// Thread-safe: one lock, held for the time of one call. Only prepare(), create(), add_peer()
/// and flush() block, and cut() and the destructor for up to FabricEndpoint::kTimeout. A child of
/// fork() must not use the wire.
class WireFabric final : public Wire {
 public:
  struct Options {
    boot::Key key;                ///< communicator's key for KeyPurpose::wire
    std::string provider;         ///< ORIEL_FABRIC_PROVIDER; empty: chosen by Oriel
    boot::SocketOptions socket;   ///< selects the interface
    std::uint32_t receives = 64;  ///< 4 to 4096
    std::uint32_t sends = 128;    ///< 4 to 4096
    /// Largest payload of a message, at most kPieceBytesMost. Peers learn it; the pieces of queues
    /// must not be larger.
    std::uint32_t payload_bytes_most = QueueSetup().piece_bytes;
    bool authenticate_payloads =
        false;  ///< see fabric_frame.hpp; one end's request is enough for both
    /// Timeout for a missing frame that later ones wait for, and for a peer that takes nothing.
    /// When it expires for a peer, messages to that peer are lost until the peer takes some again.
    Duration timeout = std::chrono::seconds(1);
    const Clock* clock = &SteadyClock::instance();  ///< outlives the wire
    const FabricTable* table = nullptr;             ///< outlives the wire; null: libfabric.so.1
  };

  /// Loads libfabric and lets its providers look for their hardware, once in a process. create()
  /// would do it otherwise, and reports what fails. On a busy machine this takes seconds: PSM's
  /// libraries, which come with libfabric, sleep hundreds of times. So call it where no rank waits
  /// for this one.
  static void prepare(const std::string& provider);

  /// Opens the wire. If libfabric is missing, the error names its package; otherwise it has each
  /// provider's reason. The first call in a process may take as long as the providers look for
  /// their hardware. Local.
  static Result<std::unique_ptr<WireFabric>> create(const Options& options);
  ~WireFabric() override;

  /// Returns the address for the peers' add_peer(), of at most FabricAddress::kEncodedBytesMost
  /// bytes.
  Bytes local_address() const;
  /// Returns the name of the chosen provider, such as tcp;ofi_rxm.
  std::string provider() const;
  /// Adds the peer with this local_address(); `name` is for errors, such as "rank 3". `queues`
  /// lists the only queues of this NIC that the peer may address; empty: any. Both ends must do it
  /// before either sends. No message is sent.
  Result<WireAddress> add_peer(ByteView address, std::string name,
                               std::vector<std::uint32_t> queues = {});

  WireAddress address() const override;
  bool send(WireAddress to, WireMessage& message) override;
  /// Returns the next message. Polls libfabric at most once between two calls that return false.
  bool receive(WireMessage& message) override;
  void end_turn() override;
  WireSign sign_of(WireAddress peer) override;

  bool can_read(WireAddress peer) override;
  std::optional<WireSource> expose(WireAddress peer, const std::byte* from,
                                   std::size_t bytes) override;
  void revoke(WireAddress peer, const WireSource& source) override;
  std::shared_ptr<RendezvousRead> rendezvous_read(WireAddress peer, const WireSource& source,
                                                  const WireTarget& target) override;
  bool is_reading(std::uint32_t key) override;
  std::vector<WireAddress> reads_by(std::uint32_t key) override;
  /// Ends all operations with these peers for good: closes the endpoint and reopens it at its
  /// address. Other peers lose the messages in flight, which their NICs retransmit. If the provider
  /// cannot reopen there, the wire is cut for all peers; returns whether it is.
  bool cut(std::span<const WireAddress> peers) override;

  /// Returns the first error that belongs to no single peer. The wire goes on as well as it can.
  Status status() const;
  /// Returns the last error of sending to this peer or reading from it; the next valid frame from
  /// the peer clears it. Names the peer, the call, and what libfabric and its provider say.
  Status peer_status(WireAddress peer) const;
  /// Descriptor for a thread that drives this wire when nobody else does. If may_sleep() has just
  /// returned true, it becomes readable when receive() may find something. -1 if the provider has
  /// none. Owned by the wire.
  int wait_descriptor() const;
  /// Returns false also while messages or reads are in flight, receive buffers have to be posted,
  /// or missing frames are waited for.
  bool may_sleep();
  /// Drives this wire until all messages that send() has taken have left. Messages received
  /// meanwhile are kept for receive(). Does not prove that the messages have arrived.
  Status flush(Deadline deadline);

 private:
  struct State;
  explicit WireFabric(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
