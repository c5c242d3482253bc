// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "net/fabric/fabric_end.hpp"

namespace oriel::net::fabric {

inline constexpr std::uint32_t kReadPartsMost = 32;  // parts in flight

/// Executes rendezvous reads: reads the bytes of long writes from peers' memory, part by part.
/// Registers memory for peers' reads.
class Reads {
 public:
  explicit Reads(End& end) : end_(end) {}

  void open();
  /// Starts a read. Fails at once if there is no peer.
  std::shared_ptr<RendezvousRead> rendezvous_read(Peer* peer, const WireSource& source,
                                                  const WireTarget& target);
  /// Starts parts of reads, as far as free parts and windows allow.
  void begin();
  void complete(std::uint32_t index);
  void fail(std::uint32_t index, Error failed);
  std::optional<WireSource> expose(const Peer& peer, const std::byte* from, std::size_t bytes);
  void revoke(WireAddress peer, const WireSource& source);
  /// Fails all reads of an endpoint that was closed. Deregisters the sources of rendezvous reads by
  /// peers that were cut.
  void cut();
  /// Drops reads and memory after the endpoint was closed.
  void drop();

  bool is_reading() const { return !pending_read_.empty(); }
  bool is_reading(std::uint32_t key) const;
  bool is_reading(std::uint32_t key, const Peer& from) const;
  bool has_exposed() const { return !exposed_.empty(); }

 private:
  /// Read from a peer's memory to its target.
  struct PendingRead {
    std::shared_ptr<RendezvousRead> whole;
    Peer* peer = nullptr;
    WireSource source;
    FabricMemory landing;  // registration of the target, if the provider needs it
    std::size_t started = 0;
    std::uint32_t parts = 0;  // in flight
    bool failed = false;
  };
  struct Part {
    Operation operation;
    std::list<PendingRead>::iterator of{};
    TimePoint started{};
    std::size_t bytes = 0;
  };
  /// Memory that a peer may read.
  struct Exposed {
    FabricMemory memory;
    WireAddress to;
  };

  bool may_read(Peer& peer, TimePoint now) const;
  bool begin_part(PendingRead& pending, TimePoint now);
  void end_part(std::uint32_t index, bool failed);
  void end_read(std::list<PendingRead>::iterator which);
  void free_parts();

  End& end_;
  std::list<PendingRead> pending_read_;
  std::vector<Part> parts_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, Exposed> exposed_;  // by libfabric's key
};

}  // namespace oriel::net::fabric
