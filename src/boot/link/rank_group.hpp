// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/task.hpp"
#include "boot/link/group_message.hpp"
#include "boot/link/transport.hpp"
#include "boot/link/verdict.hpp"

namespace oriel::boot {

/// An ordered list of world ranks that run set-up protocols together, over a Transport. All calls
/// are collective over the group, made in the same order on every member, and suspend until they
/// have ended; O(log size) rounds each. Not thread-safe.
class Group {
 public:
  /// `members` are world ranks without repetition; `index` is this rank's place among them. The
  /// transport must outlive the group.
  Group(Transport& transport, std::vector<int> members, int index);
  /// The same with a list that several groups share.
  static Group sharing(Transport& transport, std::shared_ptr<const std::vector<int>> members,
                       int index);

  int index() const { return index_; }
  int size() const { return static_cast<int>(members_->size()); }
  const std::vector<int>& members() const { return *members_; }
  int world_rank(int index) const { return (*members_)[static_cast<std::size_t>(index)]; }

  /// Every member's bytes, in group order. Sizes may differ.
  Task<Result<std::vector<Bytes>>> all_gather(Operation operation, Bytes mine);

  /// The bytes of member `root`.
  Task<Result<Bytes>> broadcast(Operation operation, int root, Bytes mine);

  /// Ends on no member before it has begun on all.
  Task<Status> barrier(Operation operation);

  /// One outcome for all: success if every member comes with success and every field has one value;
  /// else the same Error on every member, that of the lowest failing rank (with its message, hint
  /// and native status), or one that names a field, two ranks and their values. Constant-size
  /// messages. A failure of the transport itself can differ between members.
  Task<Status> agree(Operation operation, Status mine, std::vector<AgreedField> fields);

  /// What a wait elsewhere, between two calls on the group, has to watch too: see Transport.
  int news_fd() const { return transport_->news_fd(); }
  Status take_news() { return transport_->take_news(); }

 private:
  Transport* transport_;
  std::shared_ptr<const std::vector<int>> members_;
  int index_;
  std::uint32_t sequence_ = 0;  // of the calls on this group; equal on all members
};

}  // namespace oriel::boot
