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
#include "boot/link/vote_record.hpp"

namespace oriel::boot {

/// An ordered list of world ranks that run set-up protocols together over a Transport. Every call
/// is collective over the group, must come in the same order on every member, and takes O(log size)
/// rounds. Not thread-safe.
class Group {
 public:
  /// `members` are distinct world ranks; `index` is the position of this rank among them. The
  /// transport must outlive the group.
  Group(Transport& transport, std::vector<int> members, int index);
  /// Creates a group whose member list is shared by several groups.
  static Group sharing(Transport& transport, std::shared_ptr<const std::vector<int>> members,
                       int index);

  int index() const { return index_; }
  int size() const { return static_cast<int>(members_->size()); }
  const std::vector<int>& members() const { return *members_; }
  int world_rank(int index) const { return (*members_)[static_cast<std::size_t>(index)]; }

  /// Returns the bytes of every member, in group order. Sizes may differ.
  Task<Result<std::vector<Bytes>>> all_gather(Operation operation, Bytes mine);

  /// Returns the bytes of member `root`.
  Task<Result<Bytes>> broadcast(Operation operation, int root, Bytes mine);

  /// Completes on no member before every member has entered it.
  Task<Status> barrier(Operation operation);

  /// Agrees on one outcome for all members. Success requires that every member passes success and
  /// that each field has one value. If a member failed, all get the Error that VoteRecord picks,
  /// with message, hint and native status. If a field differs, the Error names the field, two
  /// ranks and their values. Messages have constant size. Failures of the transport itself can
  /// differ between members.
  Task<Status> agree(Operation operation, Status mine, std::vector<AgreedField> fields);

  /// Lets a wait between two calls on the group watch for failures too: see Transport.
  int notice_fd() const { return transport_->notice_fd(); }
  Status receive_notices() { return transport_->receive_notices(); }

 private:
  Transport* transport_;
  std::shared_ptr<const std::vector<int>> members_;
  int index_;
  std::uint32_t sequence_ = 0;  // number of calls on this group; equal on all members
};

}  // namespace oriel::boot
