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

inline constexpr std::uint32_t kFetchPartsMost = 32;  // on the way

/// Reads the bytes of long writes from the memory of peers, part by part, and registers memory for
/// peers to read.
class Reads {
 public:
  explicit Reads(End& end) : end_(end) {}

  void open();
  /// Fails at once without a peer.
  std::shared_ptr<WireFetch> fetch(Peer* peer, const WireSource& source, const WireTarget& target);
  /// Starts reads as far as there are parts.
  void begin();
  void complete(std::uint32_t index);
  void fail(std::uint32_t index, Error failed);
  std::optional<WireSource> lend(const Peer& peer, const std::byte* from, std::size_t bytes);
  void take_back(WireAddress peer, const WireSource& source);
  /// Ends all reads of an endpoint that was closed as failed, and takes back what peers that were
  /// cut were lent.
  void cut();
  /// Drops what the endpoint has been given, while that is closed.
  void drop();

  bool is_fetching() const { return !fetching_.empty(); }
  bool is_fetching(std::uint32_t key) const;
  bool is_fetching(std::uint32_t key, const Peer& from) const;
  bool has_lent() const { return !lent_.empty(); }

 private:
  /// Bytes on their way from a peer's memory to where they belong.
  struct Fetching {
    std::shared_ptr<WireFetch> whole;
    Peer* peer = nullptr;
    WireSource source;
    FabricMemory landing;  // where the provider needs it
    std::size_t begun = 0;
    std::uint32_t parts = 0;  // on the way
    bool failed = false;
  };
  struct Part {
    Operation operation;
    std::list<Fetching>::iterator of{};
    TimePoint begun{};
    std::size_t bytes = 0;
  };
  /// Memory that a peer may read.
  struct Lent {
    FabricMemory memory;
    WireAddress to;
  };

  bool may_fetch(Peer& peer, TimePoint now) const;
  bool begin_part(Fetching& fetching, TimePoint now);
  void end_part(std::uint32_t index, bool failed);
  void end_fetch(std::list<Fetching>::iterator which);
  void free_parts();

  End& end_;
  std::list<Fetching> fetching_;
  std::vector<Part> parts_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, Lent> lent_;  // by libfabric's key
};

}  // namespace oriel::net::fabric
