// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_exchange.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {
namespace {

Bytes handles_of(const std::vector<std::vector<Mlx5Queue>>& queues) {
  std::vector<std::vector<Mlx5QueueHandle>> handles;
  handles.reserve(queues.size());
  for (const std::vector<Mlx5Queue>& of_member : queues) {
    std::vector<Mlx5QueueHandle>& each = handles.emplace_back();
    each.reserve(of_member.size());
    for (const Mlx5Queue& queue : of_member) each.push_back(queue.handle());
  }
  return encode_handles(handles);
}

/// Connects the queues to one member, which has sent `message`.
Status connect_to(std::vector<Mlx5Queue>& queues, ByteView message, std::size_t members,
                  std::size_t self) {
  ORIEL_TRY(const std::vector<Mlx5QueueHandle> theirs, parse_handles(message, members, self));
  if (theirs.size() != queues.size()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the peer has made {} queues for this rank, which has made {} for it",
                             theirs.size(), queues.size()))
        .with_hint("give every rank the same settings, and the same version of Oriel");
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) ORIEL_CHECK(queues[i].connect(theirs[i]));
  return {};
}

Status connect_to_all(const boot::Group& group, const std::vector<Bytes>& messages,
                      std::vector<std::vector<Mlx5Queue>>& queues) {
  const auto self = static_cast<std::size_t>(group.index());
  for (std::size_t i = 0; i < queues.size(); ++i) {
    if (i == self) continue;
    Status connected = connect_to(queues[i], messages[i], queues.size(), self);
    if (!connected.ok()) {
      return std::move(connected).error().with_context(
          fmt::format("connecting queues to rank {}", group.world_rank(static_cast<int>(i))));
    }
  }
  return {};
}

}  // namespace

Task<Status> connect_queues(boot::Group& group, Status made,
                            std::vector<std::vector<Mlx5Queue>>& queues) {
  const auto members = static_cast<std::size_t>(group.size());
  if (made.ok() && queues.size() != members) {
    made = Error(ErrorCode::invalid_argument,
                 fmt::format("queues for {} members of a group of {}", queues.size(), members))
               .with_hint("pass one list of queues for each member");
  }
  std::vector<boot::AgreedField> no_fields;
  Status ready =
      co_await group.agree(boot::Operation::network, std::move(made), std::move(no_fields));
  if (!ready.ok()) co_return ready;
  Bytes mine = handles_of(queues);
  ORIEL_CO_TRY(const std::vector<Bytes> messages,
               co_await group.all_gather(boot::Operation::network, std::move(mine)));
  Status connected = connect_to_all(group, messages, queues);
  std::vector<boot::AgreedField> none;
  co_return co_await group.agree(boot::Operation::network, std::move(connected), std::move(none));
}

}  // namespace oriel::net
