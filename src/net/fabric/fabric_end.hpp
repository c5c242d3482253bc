// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "net/fabric/congestion_window.hpp"
#include "net/fabric/fabric_address.hpp"
#include "net/fabric/fabric_endpoint.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/fabric/wire_fabric.hpp"

/// State that the parts of a fabric wire share: this end and its peers. Private to wire_fabric.cpp,
/// wire_fabric_state.hpp and the parts (fabric_sender.hpp, fabric_receiver.hpp, fabric_reads.hpp).
/// All run under the wire's lock.
namespace oriel::net::fabric {

inline constexpr std::size_t kBatchFrameBytesMost = kFrameHeadBytes + kBatchBytesMost;
/// Slow time of CongestionWindow for one part of a rendezvous read; a slower part halves the peer's
/// window.
inline constexpr std::chrono::milliseconds kReadSlow{125};

struct Send;

struct Peer {
  std::string name;
  WireAddress address;
  fi_addr_t where = FI_ADDR_UNSPEC;
  bool authenticate_payloads = false;
  std::uint32_t payload_bytes_most = 0;
  std::vector<std::uint32_t> queues;  // queues that it may address; empty: any
  WireSign sign;
  std::optional<Error> error;
  bool is_cut = false;  // for good

  struct Outgoing {
    FrameKeys keys;
    std::uint64_t next = 0;
    std::size_t under_way = 0;               // sends that have not completed
    Send* batch = nullptr;                   // collects messages until it is sent; null: none
    std::optional<TimePoint> blocked_since;  // nothing was taken since then
  } outgoing;

  struct Incoming {
    struct Early {
      std::uint32_t buffer = 0;
      FrameHead head;
    };
    FrameKeys keys;
    std::uint64_t next = 0;
    std::map<std::uint64_t, Early> early;  // authenticated, by sequence number
    TimePoint waiting_since{};             // meaningful if `early` has frames
  } incoming;

  struct Reads {
    std::size_t parts = 0;  // in flight from this peer
    TimePoint since{};      // start of the current run without a gap
    CongestionWindow window{kReadSlow};
  } reads;
};

class Peers {
 public:
  Peer* find(WireAddress address) {
    // Most calls ask for the peer of the previous call.
    if (last_ != nullptr && last_->address == address) return last_;
    const auto it = by_address_.find(address.value);
    if (it == by_address_.end()) return nullptr;
    last_ = it->second.get();
    return last_;
  }
  void add(std::unique_ptr<Peer> peer) {
    by_address_.emplace(peer->address.value, std::move(peer));
  }
  /// Calls `use` with each peer.
  template <typename Use>
  void for_each(const Use& use) {
    for (const auto& [address, peer] : by_address_) use(*peer);
  }

 private:
  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> by_address_;
  Peer* last_ = nullptr;
};

/// Operation that a completion points to. libfabric may use the context until the completion.
struct Operation {
  enum class Kind : std::uint8_t { receive, send, rendezvous_read };
  fi_context2 context{};
  Kind kind = Kind::receive;
  std::uint32_t index = 0;
};

/// This end of the wire.
struct End {
  const FabricTable& table;
  const WireFabric::Options options;
  FabricAddress own;
  /// Closed before the memory is freed that the parts have registered with it.
  std::optional<FabricEndpoint> endpoint;
  std::optional<Error> error;  // first error that belongs to no single peer
  Peers peers;

  TimePoint now() const { return options.clock->now(); }
  void note(Error failed) {
    if (!error.has_value()) error = std::move(failed);
  }
};

}  // namespace oriel::net::fabric
