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

/// A wire between hosts: a NIC's messages as messages of libfabric, over whatever it drives: efa,
/// verbs, tcp (fabric_provider.hpp says how it is chosen).
///
/// Completions. A NIC answers what it has executed, and what is not answered it repeats; so from
/// libfabric no more is wanted of a send than that its memory is free again, and delivery is what
/// the answer says. Data and signals travel alike as messages, and the target's NIC executes them
/// in the order of its queue: there is nothing to order by completions.
///
/// Order. Long messages overtake short ones inside libfabric's providers, so each carries its place
/// in the sequence of its sender, and who comes early is held back, in the buffer it came in. When
/// one does not come at all (its connection has broken) the others go on after `patience`, or at
/// once when no buffer is left that it could still be on its way to. What comes after that is
/// dropped, as is what comes twice.
///
/// Trust. Each message is proven by a keyed hash (fabric_frame.hpp); what is not, or does not come
/// from who it says, is dropped, and has cost its receiver a buffer for as long as that takes.
/// Addresses must come over a channel that is itself proven, such as the bootstrap's links.
///
/// Progress is made in send() and receive() only: the owner's NIC has to be driven also while
/// nobody sends (FabricSleeper says when) and until all peers have ended, since an answer that was
/// given to send() may need more calls to leave. Before a wire is destroyed the ranks should agree,
/// over the bootstrap, that all of them are done; what is on its way then is lost, and nothing
/// waits for it.
///
/// Long writes do not travel in messages where the provider can read a peer's memory: then the
/// message says where the bytes are, and the NIC that is written to has them fetched to their place
/// (can_fetch() and the calls after it). They are read with a key of libfabric's, of 64 random bits
/// where the provider leaves the choice, which is good for the bytes of this write and until it is
/// answered: who learns it can read what would have crossed the network anyway. Not between ends of
/// which one wants payloads proven.
///
/// Messages to one peer leave as one, at end_turn() or when receive() has to look for more, small
/// ones as many as there are and a longer one with them: a put and its signal, and the answers to
/// those that came before, cost what one message costs.
///
/// Memory is bounded: `receives` buffers of one message each, untouched until used, and `sends`
/// messages on their way, of which one peer gets no more than are left for others. What arrives
/// beyond that waits in the provider, which holds what its peers' queues may have unanswered.
///
/// Thread-safe: one lock, held for the time of one call. Not blocking, but for create(), add_peer()
/// and flush(), and for up to FabricEndpoint::kPatience cut() and the destructor. A child of fork()
/// must not use it.
class WireFabric final : public Wire {
 public:
  struct Options {
    boot::Key key;                ///< KeyPurpose::wire: of the communicator
    std::string provider;         ///< ORIEL_FABRIC_PROVIDER; empty: chosen
    boot::SocketOptions socket;   ///< which interface
    std::uint32_t receives = 64;  ///< 4 to 4096
    std::uint32_t sends = 128;    ///< 4 to 4096
    /// At most kPieceBytesMost. Peers learn it; the pieces of queues must not be larger.
    std::uint32_t payload_bytes_most = QueueSetup().piece_bytes;
    bool prove_payloads = false;  ///< see fabric_frame.hpp; either end's wish counts for both
    /// For a message that others wait for, and for a peer that takes nothing: then what is meant
    /// for it is lost, until it does.
    Duration patience = std::chrono::seconds(1);
    const Clock* clock = &SteadyClock::instance();  ///< outlives the wire
    const FabricTable* table = nullptr;             ///< outlives the wire; null: libfabric.so.1
  };

  /// Has libfabric loaded and its providers look for their hardware, as create() would else, which
  /// tells what fails: once in a process. On a busy machine that takes seconds (PSM's libraries,
  /// which come with it, sleep hundreds of times), in which no rank should wait for this one.
  static void prepare(const std::string& provider);

  /// The error names the package if libfabric is missing, or what each provider has said. May take
  /// as long as providers look for their hardware, once in a process. Local.
  static Result<std::unique_ptr<WireFabric>> create(const Options& options);
  ~WireFabric() override;

  /// For the peers' add_peer(); at most FabricAddress::kEncodedBytesMost.
  Bytes local_address() const;
  /// The provider that was chosen, as in tcp;ofi_rxm.
  std::string provider() const;
  /// From what a peer's local_address() gave; `name` is for errors, as in "rank 3". `queues` are
  /// the only ones of this NIC's that the peer may speak to; none: any. Both ends must do it before
  /// either sends. No message is sent.
  Result<WireAddress> add_peer(ByteView address, std::string name,
                               std::vector<std::uint32_t> queues = {});

  WireAddress address() const override;
  bool send(WireAddress to, WireMessage& message) override;
  /// Looks into libfabric once at most between two calls that yield nothing.
  bool receive(WireMessage& message) override;
  void end_turn() override;
  WireSign sign_of(WireAddress peer) override;

  bool can_fetch(WireAddress peer) override;
  std::optional<WireSource> lend(WireAddress peer, const std::byte* from,
                                 std::size_t bytes) override;
  void take_back(WireAddress peer, const WireSource& source) override;
  std::shared_ptr<WireFetch> fetch(WireAddress peer, const WireSource& source,
                                   const WireTarget& target) override;
  bool is_fetching(std::uint32_t key) override;
  std::vector<WireAddress> fetches_by(std::uint32_t key) override;
  /// Other peers lose what was on its way between them and this end, as messages are lost, where
  /// the provider lets this end come back at its address. Where it does not all are cut off.
  bool cut(std::span<const WireAddress> peers) override;

  /// The first error that is nobody's in particular. The wire goes on as well as it can.
  Status status() const;
  /// The last error of sending to this peer, if it has not been heard of since. Names the peer, the
  /// call, and what libfabric and its provider say.
  Status peer_status(WireAddress peer) const;
  /// For a thread that drives this wire when nobody else does: a descriptor that becomes readable
  /// when receive() may find something to do, if may_sleep() has just said so; -1 where the
  /// provider has none. The wire's own.
  int wait_descriptor() const;
  /// False also while something is on its way, has to be repeated, or is waited for.
  bool may_sleep();
  /// Waits until all that send() has taken has left, driving this wire; what is received meanwhile
  /// is kept for receive(). No proof that it has arrived.
  Status flush(Deadline deadline);

 private:
  struct State;
  explicit WireFabric(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
