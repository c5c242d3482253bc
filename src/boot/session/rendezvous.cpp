// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/rendezvous.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/auth/secret.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/vote_record.hpp"

namespace oriel::boot {
namespace {

// Minimum time that a failed rendezvous remains, to send the error to late ranks.
constexpr Duration kShortestMemory = std::chrono::seconds(5);
constexpr std::size_t kNamedRanks = 8;

}  // namespace

std::vector<int> link_neighbours(int rank, int size) {
  std::set<int> peers;
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    peers.insert(static_cast<int>((rank + distance) % size));
    peers.insert(static_cast<int>((rank - distance + size) % size));
  }
  return {peers.begin(), peers.end()};
}

Bytes RootHello::encode() const {
  ByteWriter writer;
  writer.put(rank).put(size).put(timeout_ms).put(std::uint32_t{0}).put(process);
  address.encode(writer);
  return writer.take();
}

Result<RootHello> RootHello::decode(ByteView bytes) {
  ByteReader reader(bytes);
  RootHello hello;
  hello.rank = reader.get<std::int32_t>();
  hello.size = reader.get<std::int32_t>();
  hello.timeout_ms = reader.get<std::uint32_t>();
  const auto reserved = reader.get<std::uint32_t>();
  hello.process = reader.get<std::uint64_t>();
  ORIEL_TRY(hello.address, SocketAddress::decode(reader));
  ORIEL_CHECK(reader.finish("a rank's hello"));
  if (reserved != 0) {
    return Error(
        ErrorCode::remote,
        fmt::format("the hello of rank {} has reserved bytes {:#x}, not 0", hello.rank, reserved));
  }
  return hello;
}

Bytes encode_peers(const PeerAddresses& peers) {
  ByteWriter writer;
  for (const auto& [rank, address] : peers) {
    writer.put(static_cast<std::int32_t>(rank));
    address.encode(writer);
  }
  return writer.take();
}

Result<PeerAddresses> decode_peers(ByteView payload, int size) {
  ByteReader reader(payload);
  PeerAddresses peers;
  while (reader.left() > 0) {
    const auto rank = reader.get<std::int32_t>();
    ORIEL_TRY(const SocketAddress address, SocketAddress::decode(reader));
    if (rank < 0 || rank >= size) {
      return Error(ErrorCode::remote,
                   fmt::format("the root service names rank {} of {}", rank, size));
    }
    peers.emplace_back(rank, address);
  }
  return peers;
}

Rendezvous::Rendezvous(std::uint64_t own_process, Deadline expiry)
    : own_process_(own_process), expiry_(expiry) {}

void Rendezvous::on_hello(Connection from, const RootHello& hello, TimePoint now) {
  longest_timeout_ =
      std::max<Duration>(longest_timeout_, std::chrono::milliseconds(hello.timeout_ms));
  const bool valid =
      hello.size >= 1 && hello.size <= kMaxRanks && hello.rank >= 0 && hello.rank < hello.size;
  if (valid) failure_.note_size(hello.size);
  if (failure_.error() != nullptr) {
    send_error(from, valid ? hello.rank : -1);
    return;
  }
  if (!valid) {
    // The error concerns one caller, so only that caller gets it; the others may still complete.
    const Error error =
        Error(ErrorCode::invalid_argument,
              fmt::format("rank {} of {} cannot be: sizes go from 1 to {}, ranks from 0 to "
                          "size - 1",
                          hello.rank, hello.size, kMaxRanks))
            .with_hint("pass the same number of ranks everywhere, and a rank below it");
    ByteWriter payload;
    ErrorRecord::encode(payload, error);
    outgoing_.push_back({from, encode_frame(FrameKind::root_error, payload.take())});
    return;
  }
  admit(from, hello, now);
}

void Rendezvous::admit(Connection from, const RootHello& hello, TimePoint now) {
  const Deadline timeout = Deadline::at(now + std::chrono::milliseconds(hello.timeout_ms));
  if (size_ == 0) {
    size_ = hello.size;
    first_rank_ = hello.rank;
  }
  if (const auto* const same = members_.find(hello.rank); same != nullptr) {
    failure_.note_duplicate();
    const std::string first = same->address.to_string();
    fail(Error(ErrorCode::invalid_usage, fmt::format("two callers joined as rank {} (at {} and {})",
                                                     hello.rank, first, hello.address.to_string()))
             .with_origin(hello.rank)
             .with_hint("give each rank a number of its own"),
         now);
    send_error(from, hello.rank);
    return;
  }
  members_.add(hello.rank, {from, hello.address, timeout});
  if (hello.size != size_) {
    return fail(Error(ErrorCode::invalid_usage,
                      fmt::format("rank {} joined with size {}, rank {} with size {}", first_rank_,
                                  size_, hello.rank, hello.size))
                    .with_origin(hello.rank)
                    .with_hint("pass the same number of ranks everywhere"),
                now);
  }
  if (hello.process == own_process_ && host_rank_ < 0) {
    host_rank_ = hello.rank;
    announce_host();
  } else if (host_rank_ >= 0) {
    ByteWriter payload;
    payload.put(static_cast<std::int32_t>(host_rank_));
    outgoing_.push_back({from, encode_frame(FrameKind::root_host, payload.take())});
  }
  if (members_.count() == size_) complete();
}

void Rendezvous::announce_host() {
  ByteWriter payload;
  payload.put(static_cast<std::int32_t>(host_rank_));
  const Bytes frame = encode_frame(FrameKind::root_host, payload.take());
  for (const auto& [rank, member] : members_.by_rank())
    outgoing_.push_back({member.connection, frame});
}

void Rendezvous::complete() {
  complete_ = true;
  members_.extend(kLinkingGrace);
  for (const auto& [rank, member] : members_.by_rank()) {
    PeerAddresses peers;
    for (const int peer : link_neighbours(rank, size_)) {
      if (peer < rank) peers.emplace_back(peer, members_.find(peer)->address);
    }
    outgoing_.push_back(
        {member.connection, encode_frame(FrameKind::root_peers, encode_peers(peers))});
  }
}

void Rendezvous::on_done(Connection from) {
  const std::optional<int> rank = members_.rank_of(from);
  if (!rank || !complete_ || failure_.error() != nullptr || members_.find(*rank)->done) return;
  members_.finish(*rank);
  finished_ = members_.done() == size_;
}

void Rendezvous::on_gave_up(Connection from, const Error& reason, TimePoint now) {
  const std::optional<int> rank = members_.rank_of(from);
  if (!rank || failure_.error() != nullptr || members_.find(*rank)->done) return;
  fail(Error(reason).with_origin(*rank), now);
}

void Rendezvous::on_closed(Connection connection, TimePoint now) {
  const std::optional<int> rank = members_.rank_of(connection);
  if (!rank || failure_.error() != nullptr || members_.find(*rank)->done) return;
  fail(Error(ErrorCode::remote,
             fmt::format("rank {} has died or given up while joining: its connection to the "
                         "rendezvous has closed",
                         *rank))
           .with_origin(*rank),
       now);
}

void Rendezvous::on_time(TimePoint now) {
  if (failure_.error() != nullptr || size_ == 0) {
    if (expiry_.expired(now)) finished_ = true;
    return;
  }
  if (next_timer().expired(now)) fail(not_in_time(), now);
}

void Rendezvous::on_shortage(const Error& reason, TimePoint now) {
  if (failure_.error() != nullptr || size_ == 0 || complete_) return;
  Error error =
      Error(reason).with_context("accepting ranks in the process that made the unique id");
  if (host_rank_ >= 0) error = std::move(error).with_origin(host_rank_);
  fail(std::move(error), now);
}

Deadline Rendezvous::next_timer() const {
  if (failure_.error() != nullptr || size_ == 0) return expiry_;
  return members_.next_deadline();
}

Error Rendezvous::not_in_time() const {
  const int count = size_ - (complete_ ? members_.done() : members_.count());
  const std::size_t named = std::min(static_cast<std::size_t>(count), kNamedRanks);
  std::vector<int> late;
  for (int rank = 0; late.size() < named; ++rank) {  // stops early: there may be a million ranks
    const auto* const member = members_.find(rank);
    const bool on_time = complete_ ? member->done : member != nullptr;
    if (!on_time) late.push_back(rank);
  }
  const std::size_t more = static_cast<std::size_t>(count) - named;
  std::string who =
      fmt::format("{} {}{} of {}", count == 1 ? "rank" : "ranks", fmt::join(late, ", "),
                  more > 0 ? fmt::format(" and {} more", more) : "", size_);
  Error error(ErrorCode::timeout,
              fmt::format("{} {} not {} in time", who, count == 1 ? "has" : "have",
                          complete_ ? "connected to all neighbours" : "joined"));
  // If several ranks are not linked, most of them wait for another, so no origin is set.
  if (!complete_ || count == 1) error = std::move(error).with_origin(late.front());
  return std::move(error).with_hint(
      "see that every rank runs and calls init, or raise ORIEL_TIMEOUT");
}

void Rendezvous::fail(Error error, TimePoint now) {
  failure_.set(std::move(error).with_scope(Scope::communicator));
  expiry_ = Deadline::at(now + std::max(longest_timeout_, kShortestMemory));
  for (const auto& [connection, rank] : members_.by_connection()) send_error(connection, rank);
}

void Rendezvous::send_error(Connection to, int rank) {
  ByteWriter payload;
  ErrorRecord::encode(payload, *failure_.error());
  outgoing_.push_back({to, encode_frame(FrameKind::root_error, payload.take())});
  failure_.note_notified(rank);
  // Otherwise ranks that still come get the error until expiry_.
  if (failure_.has_reached_all()) finished_ = true;
}

}  // namespace oriel::boot
