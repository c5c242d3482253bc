// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/rank_group.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/link/vote_record.hpp"

/// Implements the group protocols. All send only along the edges index -> index + 2^k (mod size),
/// so a session needs at most 2 * ceil(log2(size)) links. Barrier and agreement use dissemination
/// (Hensgen, Finkel and Manber, 1988). The all-gather is that of Bruck et al. (1997), run in the
/// opposite direction. Broadcast uses a binomial tree.
namespace oriel::boot {
namespace {

/// One call on a group: adds and checks the headers, and reports failures to the transport.
class Exchange {
 public:
  Exchange(Transport& transport, std::span<const int> members, int index, Operation operation,
           GroupProtocol protocol, std::uint32_t sequence)
      : transport_(&transport),
        members_(members),
        index_(index),
        header_{operation, protocol, 0, sequence, hash_members(members)} {}

  int size() const { return static_cast<int>(members_.size()); }
  int index() const { return index_; }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  int ahead(int distance) const { return (index_ + distance) % size(); }
  int behind(int distance) const { return (index_ - distance % size() + size()) % size(); }

  Task<Status> send(int member, int round, Bytes body) {
    GroupHeader header = header_;
    header.round = static_cast<std::uint8_t>(round);
    ByteWriter writer(GroupHeader::kBytes + body.size());
    header.encode(writer);
    writer.put_raw(body);
    Bytes message = writer.take();
    Status sent = co_await transport_->send(world_rank(member), std::move(message));
    if (!sent.ok()) co_return std::move(sent).error().with_context(context());
    co_return Status();
  }

  /// Receives a message, checks and removes its header, and returns the body.
  Task<Result<Bytes>> receive(int member, int round) {
    auto message = co_await transport_->receive(world_rank(member));
    if (!message.ok()) co_return std::move(message).error().with_context(context());
    GroupHeader due = header_;
    due.round = static_cast<std::uint8_t>(round);
    auto body = open_group_message(message.value(), due, world_rank(index_), world_rank(member));
    if (!body.ok()) co_return fail(std::move(body).error());
    message->erase(message->begin(), message->end() - static_cast<std::ptrdiff_t>(body->size()));
    co_return std::move(*message);
  }

  /// Ends the protocol on all ranks: otherwise they would wait for this rank until their deadlines.
  Error fail(Error error) {
    Error reported = std::move(error).with_scope(Scope::communicator).with_context(context());
    transport_->give_up(reported);
    return reported;
  }

 private:
  std::string context() const {
    return fmt::format("{} #{}", to_string(header_.operation), header_.sequence);
  }

  Transport* transport_;
  std::span<const int> members_;
  int index_;
  GroupHeader header_;
};

Bytes encode_blocks(std::span<const Bytes> blocks) {
  ByteWriter writer;
  put_blocks(writer, blocks);
  return writer.take();
}

Bytes encode(const VoteRecord& vote) {
  ByteWriter writer;
  vote.encode(writer);
  return writer.take();
}

Status merge(VoteRecord& vote, ByteView message) {
  ByteReader reader(message);
  ORIEL_TRY(const VoteRecord theirs, VoteRecord::decode(reader));
  return vote.merge(theirs);
}

}  // namespace

Group::Group(Transport& transport, std::vector<int> members, int index)
    : transport_(&transport),
      members_(std::make_shared<const std::vector<int>>(std::move(members))),
      index_(index) {}

Group Group::sharing(Transport& transport, std::shared_ptr<const std::vector<int>> members,
                     int index) {
  Group group(transport, std::vector<int>(), index);
  group.members_ = std::move(members);
  return group;
}

Task<Result<std::vector<Bytes>>> Group::all_gather(Operation operation, Bytes mine) {
  Exchange exchange(*transport_, *members_, index_, operation, GroupProtocol::all_gather,
                    ++sequence_);
  const auto count = static_cast<std::size_t>(size());
  // blocks[j] belongs to member (index - j); each round doubles the number of blocks.
  std::vector<Bytes> blocks;
  blocks.reserve(count);
  blocks.push_back(std::move(mine));
  for (int round = 0, distance = 1; distance < size(); ++round, distance *= 2) {
    const std::size_t moved = std::min(static_cast<std::size_t>(distance), count - blocks.size());
    Bytes out = encode_blocks(std::span(blocks).first(moved));
    ORIEL_CO_CHECK(co_await exchange.send(exchange.ahead(distance), round, std::move(out)));
    ORIEL_CO_TRY(const Bytes in, co_await exchange.receive(exchange.behind(distance), round));
    Status parsed = take_blocks(in, moved, blocks);
    if (!parsed.ok()) {
      co_return exchange.fail(std::move(parsed).error());
    }
  }
  std::vector<Bytes> ordered(count);
  for (std::size_t j = 0; j < count; ++j) {
    ordered[static_cast<std::size_t>(exchange.behind(static_cast<int>(j)))] = std::move(blocks[j]);
  }
  co_return std::move(ordered);
}

Task<Result<Bytes>> Group::broadcast(Operation operation, int root, Bytes mine) {
  Exchange exchange(*transport_, *members_, index_, operation, GroupProtocol::broadcast,
                    ++sequence_);
  if (root < 0 || root >= size()) {
    co_return exchange.fail(Error(ErrorCode::internal,
                                  fmt::format("broadcast root {} in a group of {}", root, size())));
  }
  // Places are counted from the root. Place p receives from the place without p's highest bit, and
  // sends to p + 2^k for each greater 2^k.
  const auto place = static_cast<unsigned>(exchange.behind(root));
  const auto first_round = static_cast<int>(std::bit_width(place));
  if (place != 0) {
    const int distance = 1 << (first_round - 1);
    ORIEL_CO_TRY(mine, co_await exchange.receive(exchange.behind(distance), first_round - 1));
  }
  for (int round = first_round; static_cast<int>(place) + (1 << round) < size(); ++round) {
    Bytes out = mine;
    ORIEL_CO_CHECK(co_await exchange.send(exchange.ahead(1 << round), round, std::move(out)));
  }
  co_return mine;
}

Task<Status> Group::barrier(Operation operation) {
  Exchange exchange(*transport_, *members_, index_, operation, GroupProtocol::barrier, ++sequence_);
  for (int round = 0, distance = 1; distance < size(); ++round, distance *= 2) {
    Bytes out;
    ORIEL_CO_CHECK(co_await exchange.send(exchange.ahead(distance), round, std::move(out)));
    ORIEL_CO_TRY(const Bytes in, co_await exchange.receive(exchange.behind(distance), round));
    if (Status empty = check_barrier_body(in); !empty.ok()) {
      co_return exchange.fail(std::move(empty).error());
    }
  }
  co_return Status();
}

Task<Status> Group::agree(Operation operation, Status mine, std::vector<AgreedField> fields) {
  Exchange exchange(*transport_, *members_, index_, operation, GroupProtocol::agree, ++sequence_);
  if (fields.size() > VoteRecord::kMaxFields) {
    mine = Error(ErrorCode::internal, fmt::format("an agreement on {} fields; the limit is {}",
                                                  fields.size(), VoteRecord::kMaxFields));
    fields.clear();
  }
  // From the first message on, the others rely on this rank's vote and may act on the result.
  VoteRecord vote(world_rank(index_), mine, fields);
  for (int round = 0, distance = 1; distance < size(); ++round, distance *= 2) {
    Bytes out = encode(vote);
    ORIEL_CO_CHECK(co_await exchange.send(exchange.ahead(distance), round, std::move(out)));
    ORIEL_CO_TRY(const Bytes in, co_await exchange.receive(exchange.behind(distance), round));
    Status merged = merge(vote, in);
    if (!merged.ok()) co_return exchange.fail(std::move(merged).error());
  }
  co_return vote.outcome(fields);
}

}  // namespace oriel::boot
