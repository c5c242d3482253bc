// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/try.hpp"
#include "kernels/plan/exchange.hpp"

/// What each collective, and each group of sends and receives, is as an exchange.
namespace oriel::kernels {
namespace {

constexpr std::uint32_t kPointToPoint = 0xff;

std::uint32_t hash_of(std::uint64_t bytes, std::uint32_t kind, std::uint32_t type, std::uint32_t op,
                      std::uint32_t root) {
  std::uint64_t hash = bytes;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(kind);
  mix(std::uint64_t{type} << 8 | op);
  mix(root);
  return static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
}

/// The messages of one collective, from the point of view of one rank.
class CollectiveExchange {
 public:
  explicit CollectiveExchange(const TeamCollective& call)
      : call_(call), bytes_(call.count * size_of(call.operation.type)) {
    const bool reduces = kernels::reduces(call.collective);
    made_.reduces = reduces;
    made_.operation = call.operation;
    signature_ = hash_of(bytes_, static_cast<std::uint32_t>(call.collective),
                         static_cast<std::uint32_t>(call.operation.type),
                         reduces ? static_cast<std::uint32_t>(call.operation.op) : 0,
                         has_root(call.collective) ? static_cast<std::uint32_t>(call.root) : 0);
    made_.fold_signature = signature_;
  }

  Exchange make() {
    if (bytes_ == 0) return std::move(made_);
    if (kernels::reduces(call_.collective)) {
      add_fold();
    } else if (sends() && receives()) {
      made_.copies.push_back({input_for(call_.rank), output_from(call_.rank), bytes_});
    }
    // Each rank begins with its neighbour, so that not all send to one rank at once.
    for (int distance = 1; distance < call_.ranks; ++distance) {
      const int to = (call_.rank + distance) % call_.ranks;
      if (sends() && receives(to)) made_.sends.push_back(message(input_for(to), to));
      const int from = (call_.rank + call_.ranks - distance) % call_.ranks;
      if (!made_.reduces && receives() && sends(from)) {
        made_.receives.push_back(message(output_from(from), from));
      }
    }
    return std::move(made_);
  }

 private:
  bool is_root(int rank) const { return rank == call_.root; }
  /// Whether `rank` has something to send, and whether it gets something from others.
  bool sends(int rank) const {
    const bool from_root =
        call_.collective == Collective::broadcast || call_.collective == Collective::scatter;
    return !from_root || is_root(rank);
  }
  bool receives(int rank) const {
    const bool to_root =
        call_.collective == Collective::reduce || call_.collective == Collective::gather;
    return !to_root || is_root(rank);
  }
  bool sends() const { return sends(call_.rank); }
  bool receives() const { return receives(call_.rank); }

  const std::byte* input_for(int rank) const {
    const auto block = sends_blocks(call_.collective) ? static_cast<std::uint64_t>(rank) : 0;
    return call_.input + block * bytes_;
  }
  std::byte* output_from(int rank) const {
    const auto block = receives_blocks(call_.collective) ? static_cast<std::uint64_t>(rank) : 0;
    return call_.output + block * bytes_;
  }
  Message message(const std::byte* data, int peer) const {
    return {const_cast<std::byte*>(data), bytes_, peer, signature_};
  }
  void add_fold() {
    if (receives()) made_.fold = {input_for(call_.rank), call_.output, bytes_};
  }

  const TeamCollective& call_;
  std::uint64_t bytes_;
  std::uint32_t signature_ = 0;
  Exchange made_;
};

}  // namespace

Exchange exchange_of(const TeamCollective& call) {
  return CollectiveExchange(call).make();
}

Result<Exchange> exchange_of(const std::vector<PointToPoint>& calls, int rank) {
  Exchange made;
  std::vector<const PointToPoint*> own_sends;
  std::vector<const PointToPoint*> own_receives;
  for (const PointToPoint& call : calls) {
    if (call.peer == rank) {
      (call.is_send ? own_sends : own_receives).push_back(&call);
    } else if (call.bytes > 0) {
      const std::uint32_t signature = hash_of(call.bytes, kPointToPoint, 0, 0, 0);
      (call.is_send ? made.sends : made.receives)
          .push_back({call.data, call.bytes, call.peer, signature});
    }
  }
  if (own_sends.size() != own_receives.size()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("rank {} sends {} messages to itself and receives {} from itself in "
                             "one group",
                             rank, own_sends.size(), own_receives.size()))
        .with_hint("a send to the own rank needs its receive in the same group");
  }
  for (std::size_t i = 0; i < own_sends.size(); ++i) {
    if (own_sends[i]->bytes != own_receives[i]->bytes) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("send {} of rank {} to itself has {} bytes, its receive {}", i, rank,
                               own_sends[i]->bytes, own_receives[i]->bytes));
    }
    made.copies.push_back({own_sends[i]->data, own_receives[i]->data, own_sends[i]->bytes});
  }
  return made;
}

}  // namespace oriel::kernels
