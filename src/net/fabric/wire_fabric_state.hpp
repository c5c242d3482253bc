// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/fabric/byte_window.hpp"
#include "net/fabric/fabric_address.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/fabric/fabric_owner.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/wire/wire_format.hpp"

/// What a fabric wire holds; private to wire_fabric*.cpp. Everything is under the state's lock.
namespace oriel::net {
namespace fabric {

/// Of a payload that travels in the batch, which is copied and proven. A longer one follows it.
inline constexpr std::size_t kSmallBytesMost = 328;
inline constexpr std::size_t kBatchFrameBytesMost = kFrameHeadBytes + kBatchBytesMost;
/// Where payloads are copied to behind the batch, it has room for so much behind their message: a
/// word or two, and an answer.
inline constexpr std::size_t kBatchBytesBehind = 256;
inline constexpr std::size_t kFetchPartBytes = std::size_t{128} << 10;
inline constexpr std::uint32_t kFetchPartsMost = 32;  // on the way
/// A part that takes longer has too many before it.
inline constexpr std::chrono::milliseconds kFetchSlow{125};
/// After so long a peer gets a gap. Providers send what is read from a peer before what it asks for
/// itself, so while there always is something to be read it could ask for nothing.
inline constexpr std::chrono::milliseconds kFetchGapEvery{250};

struct Send;

struct Peer {
  std::string name;
  WireAddress address;
  fi_addr_t where = FI_ADDR_UNSPEC;
  FrameKeys outgoing;
  FrameKeys incoming;
  bool prove_payloads = false;
  std::uint32_t payload_bytes_most = 0;
  std::vector<std::uint32_t> queues;  // the only ones that it may speak to; none: any
  std::uint64_t next_out = 0;
  std::uint64_t next_in = 0;
  std::size_t on_the_way = 0;  // sends that have not completed
  std::size_t fetches = 0;     // parts on the way from there
  TimePoint fetching_since{};  // without a gap
  ByteWindow fetch_window{kFetchSlow};
  WireSign sign;
  std::optional<TimePoint> blocked_since;  // nothing has been taken since
  std::optional<Error> error;
  bool is_cut = false;    // for good
  Send* batch = nullptr;  // to which messages are added until the next poll

  struct Early {
    std::uint32_t buffer = 0;
    FrameHead head;
  };
  std::map<std::uint64_t, Early> early;  // proven, by sequence
  TimePoint waiting_since{};             // if there are any
};

/// What a completion points to; libfabric may use the context until then.
struct Operation {
  enum class Kind : std::uint8_t { receive, send, fetch };
  fi_context2 context{};
  Kind kind = Kind::receive;
  std::uint32_t index = 0;
};

struct Send {
  Operation operation;
  std::byte* heads = nullptr;
  void* descriptor = nullptr;  // of the memory at `heads`
  Peer* peer = nullptr;
  Bytes payload;  // of one message of the batch; empty if it has been copied behind that
  std::size_t payload_bytes = 0;
  std::size_t batch_bytes = 0;
  std::size_t batch_limit = 0;  // where the payload begins, if that has been copied
  std::uint32_t messages = 0;
};

/// Bytes on their way from a peer's memory to where they belong, part by part.
struct Fetching {
  std::shared_ptr<WireFetch> whole;
  Peer* peer = nullptr;
  WireSource source;
  FabricMemory landing;  // where the provider needs it
  std::size_t begun = 0;
  std::uint32_t parts = 0;  // on the way
  bool failed = false;
};

/// Memory that a peer may read.
struct Lent {
  FabricMemory memory;
  WireAddress to;
};

/// One part of it.
struct FetchPart {
  Operation operation;
  std::list<Fetching>::iterator of{};
  TimePoint begun{};
  std::size_t bytes = 0;
};

struct Receive {
  Operation operation;
  std::byte* memory = nullptr;
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

struct Arrived {
  Peer* peer = nullptr;
  std::uint32_t buffer = 0;
  FrameHead head;
  std::size_t taken = 0;    // of the batch
  bool has_payload = true;  // that no message has had yet
};

}  // namespace fabric

struct WireFabric::State {
  using Peer = fabric::Peer;
  using Send = fabric::Send;
  using Receive = fabric::Receive;
  using Arrived = fabric::Arrived;
  using Operation = fabric::Operation;
  using Fetching = fabric::Fetching;

  State(const FabricTable& with, const Options& given, FabricInfo found)
      : table(with), options(given), info(std::move(found)) {}
  ~State() {
    // Before memory that it was given. The memory of others may have gone before.
    const bool may_drive = fetching.empty() && lent.empty();
    if (endpoint.has_value()) endpoint->close(may_drive);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Status open();
  void lay_out();
  Status register_buffers();
  Status post_all();
  bool post(std::uint32_t buffer);
  void post_again();

  void poll();
  void read_error();
  void complete(const Operation& operation, std::size_t bytes);
  void complete_send(Send& send);
  void arrive(std::uint32_t buffer, std::size_t bytes);
  void accept(Peer& peer, std::uint32_t buffer, const FrameHead& head);
  void take_early(Peer& peer);
  void give_up_missing();

  void begin_fetches();
  bool may_fetch(Peer& peer, TimePoint now) const;
  bool begin_part(Fetching& fetching, TimePoint now);
  void complete_part(std::uint32_t index, bool failed);
  void end_fetch(std::list<Fetching>::iterator which);
  void cut(const std::vector<Peer*>& whom);
  void forget_sends();
  void forget_received(Peer& peer);
  void drain_completions();

  Peer* find(WireAddress address);
  bool send(Peer& peer, WireMessage& message);
  bool make_room(Peer& peer, std::size_t bytes, bool has_payload);
  void put_behind(Send& batch, Payload& payload);
  bool send_batch(Peer& peer);
  void send_batches();
  Send& take_slot(Peer& peer);
  Result<WireMessage> read(Arrived& from);
  ssize_t post_send(Peer& peer, Send& batch);
  bool has_room(const Peer& peer) const {
    return !free.empty() && peer.on_the_way < std::max<std::size_t>(2, free.size());
  }
  bool wait_for_room(Peer& peer);
  bool is_blocked_for_long(Peer& peer);
  void lose(Peer& peer, Error error, std::uint64_t messages = 1);
  void note(Error error);
  ByteView view(std::uint32_t buffer, const FrameHead& head) const {
    return {receives[buffer].memory, kFrameHeadBytes + head.batch_bytes + head.payload_bytes};
  }

  const FabricTable& table;
  const Options options;
  std::mutex mutex;
  FabricInfo info;  // until it is opened
  FabricAddress own;
  Bytes encoded;

  // The endpoint goes first: it has been given what stands before it.
  std::unique_ptr<std::byte[]> memory;
  std::unique_ptr<std::byte[]> zeros;  // to pad with, where payloads are not copied
  std::vector<Receive> receives;
  std::vector<Send> sends;
  std::optional<FabricEndpoint> endpoint;

  void* receive_descriptor = nullptr;
  bool copies_payloads = false;  ///< messages are sent from registered memory, or as one part
  std::size_t receive_bytes = 0;
  std::size_t send_bytes = 0;
  fabric::Padding padding;
  std::vector<std::uint32_t> free;      // of sends
  std::vector<std::uint32_t> unposted;  // of receives: libfabric had no room
  std::size_t posted = 0;
  std::deque<Arrived> arrived;
  std::list<Fetching> fetching;
  std::vector<fabric::FetchPart> fetch_parts;
  std::vector<std::uint32_t> free_parts;
  std::unordered_map<std::uint64_t, fabric::Lent> lent;  // by libfabric's key
  bool is_cut = false;
  bool has_polled = false;  // since receive() yielded nothing
  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers;
  Peer* last_peer = nullptr;
  std::size_t waiting_peers = 0;
  std::vector<Peer*> with_batch;  // peers that have one
  std::optional<Error> error;
  Counters counters;
};

}  // namespace oriel::net
