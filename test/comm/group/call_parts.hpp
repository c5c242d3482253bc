// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "nccl.h"

#include "comm/communicator/random_all_reduces.hpp"
#include "comm/group/drawn_calls.hpp"
#include "support/ranks.hpp"

/// One rank's share of calls that all ranks draw alike, on CPU or GPU memory.
namespace oriel::test {

/// Registration of a buffer's memory. Windows of `toggled` may be registered between groups or in a
/// group. They are deregistered between groups.
enum class Registration { window, toggled, buffer, none };
inline constexpr std::size_t kRegistrations = 4;

/// Bytes of a rank. The test reads and writes them through `mirror`, which equals `at` on CPUs.
struct GuardedBuffer {
  std::byte* at = nullptr;
  std::byte* mirror = nullptr;
  std::size_t bytes = 0;
};

/// One rank's memory for the calls of a group: one area for each kind of registration.
class GroupMemory {
 public:
  static constexpr std::size_t kAreaBytes = 8 << 20;

  virtual ~GroupMemory() = default;
  /// Returns an area of kAreaBytes bytes.
  virtual std::byte* area(Registration kind) = 0;
  virtual std::byte* mirror(Registration kind) { return area(kind); }
  /// Returns the stream of a call. `drawn` may differ between ranks.
  virtual cudaStream_t stream(std::uint64_t /*drawn*/) { return nullptr; }

  void reset() { used_ = {}; }
  std::size_t used(Registration kind) const { return used_[static_cast<std::size_t>(kind)]; }

  /// Returns `bytes` that are `skew` elements off alignment, with guards on both sides.
  GuardedBuffer take(Registration kind, std::size_t bytes, std::size_t element, std::size_t skew) {
    std::size_t& used = used_[static_cast<std::size_t>(kind)];
    const std::size_t begin = (used + kGuard + 63) / 64 * 64 + skew * element;
    used = begin + bytes + kGuard;
    require(used <= kAreaBytes, "the calls of a group have more memory than an area");
    std::fill_n(mirror(kind) + begin - kGuard, bytes + 2 * kGuard, kGuardByte);
    return {area(kind) + begin, mirror(kind) + begin, bytes};
  }
  static bool is_guarded(const GuardedBuffer& buffer) {
    const auto is_kept = [](const std::byte* from) {
      return std::all_of(from, from + kGuard, [](std::byte byte) { return byte == kGuardByte; });
    };
    return buffer.at == nullptr ||
           (is_kept(buffer.mirror - kGuard) && is_kept(buffer.mirror + buffer.bytes));
  }

 private:
  static constexpr std::size_t kGuard = 32;
  static constexpr std::byte kGuardByte{0x5a};

  std::array<std::size_t, kRegistrations> used_{};
};

/// One rank of a communicator.
struct Member {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int size = 0;
};

/// Draws the position of a rank's buffer. Other ranks do not need to know the position.
inline GuardedBuffer place(GroupMemory& memory, std::uint64_t seed, std::size_t bytes,
                           DataType type) {
  return memory.take(static_cast<Registration>(seed % kRegistrations), bytes, size_of(type),
                     seed / 8 % 8);
}

/// One rank's share of a collective.
class CollectivePart {
 public:
  CollectivePart(const DrawnCollective& call, const Member& member, GroupMemory& memory)
      : call_(call),
        member_(member),
        reference_(call),
        stream_(memory.stream(mix(call.seed + 3, static_cast<std::uint64_t>(member.rank)))) {
    const int rank = member.rank;
    const bool sends = call.sends(rank), receives = call.receives(rank);
    const auto own = static_cast<std::size_t>(rank) * call.bytes();
    const auto take = [&](std::uint64_t which, std::size_t bytes) {
      return place(memory, mix(call.seed + which, static_cast<std::uint64_t>(rank)), bytes,
                   call.type);
    };
    in_place_ = call.in_place && sends && receives;
    const bool into_input = in_place_ && !receives_blocks(call.collective);
    if (sends && (!in_place_ || into_input)) input_ = take(1, call.sent_bytes());
    if (receives && !into_input) output_ = take(2, call.received_bytes());
    const bool from_output = in_place_ && !into_input;
    from_ = at_offset(from_output ? output_ : input_, from_output ? own : 0);
    const std::size_t to_offset = into_input && sends_blocks(call.collective) ? own : 0;
    to_ = at_offset(into_input ? input_ : output_, to_offset);
    const auto& data = reference_.input(rank);
    if (sends) std::copy(data.begin(), data.end(), from_.mirror);
  }

  ncclResult_t issue() {
    const auto type = static_cast<ncclDataType_t>(call_.type);
    const auto [from, to, count, comm] = std::tuple(from_.at, to_.at, call_.count, member_.comm);
    switch (call_.collective) {
      case kernels::Collective::all_gather:
        return ncclAllGather(from, to, count, type, comm, stream_);
      case kernels::Collective::broadcast:
        if (!call_.in_place) return ncclBroadcast(from, to, count, type, call_.root, comm, stream_);
        return ncclBcast(in_place_ ? from : to, count, type, call_.root, comm, stream_);
      case kernels::Collective::all_to_all:
        return pncclAlltoAll(from, to, count, type, comm, stream_);
      case kernels::Collective::gather:
        return ncclGather(from, to, count, type, call_.root, comm, stream_);
      case kernels::Collective::scatter:
        return ncclScatter(from, to, count, type, call_.root, comm, stream_);
      default:
        return reduce(type);
    }
  }

  /// Returns a hash of the result that all ranks must have in common, or 0.
  std::uint64_t check(bool exact) const {
    const int rank = member_.rank;
    require(GroupMemory::is_guarded(input_) && GroupMemory::is_guarded(output_),
            "bytes beside a buffer");
    const auto& data = reference_.input(rank);
    require(in_place_ || !call_.sends(rank) || std::equal(data.begin(), data.end(), from_.mirror),
            "the input is as it was");
    if (!call_.receives(rank)) return 0;
    const std::string wrong = reference_.compare(rank, to_.mirror, exact);
    require(wrong.empty(), "wrong output: " + wrong);
    return call_.collective == kernels::Collective::all_reduce
               ? hash_bytes(to_.mirror, call_.bytes())
               : 0;
  }

 private:
  ncclResult_t reduce(ncclDataType_t type) {
    auto op = static_cast<ncclRedOp_t>(call_.op);
    std::uint64_t scalar = reference_.scalar(member_.rank);
    const bool scales = call_.op == ReduceOp::premul_sum;
    if (scales) {
      require(ncclRedOpCreatePreMulSum(&op, &scalar, type, ncclScalarHostImmediate, member_.comm),
              "ncclRedOpCreatePreMulSum");
    }
    ncclResult_t done = ncclSuccess;
    if (call_.collective == kernels::Collective::all_reduce) {
      done = ncclAllReduce(from_.at, to_.at, call_.count, type, op, member_.comm, stream_);
    } else if (call_.collective == kernels::Collective::reduce_scatter) {
      done = pncclReduceScatter(from_.at, to_.at, call_.count, type, op, member_.comm, stream_);
    } else {
      done = ncclReduce(from_.at, to_.at, call_.count, type, op, call_.root, member_.comm, stream_);
    }
    if (scales) require(ncclRedOpDestroy(op, member_.comm), "ncclRedOpDestroy");
    return done;
  }

  static GuardedBuffer at_offset(const GuardedBuffer& buffer, std::size_t offset) {
    if (buffer.at == nullptr) return {};
    return {buffer.at + offset, buffer.mirror + offset, buffer.bytes - offset};
  }

  DrawnCollective call_;
  Member member_;
  CollectiveReference reference_;
  GuardedBuffer input_, output_;
  GuardedBuffer from_, to_;  // null where the rank may pass any pointer
  cudaStream_t stream_;
  bool in_place_ = false;
};

/// One rank's send or receive.
class MessagePart {
 public:
  MessagePart(const DrawnMessage& message, bool is_send, const Member& member, GroupMemory& memory)
      : message_(message),
        is_send_(is_send),
        comm_(member.comm),
        stream_(memory.stream(mix(message.seed, is_send ? 3 : 4))) {
    buffer_ = place(memory, mix(message.seed, is_send ? 1 : 2), message.bytes(), message.type);
    const auto data = message.data();
    if (is_send) std::copy(data.begin(), data.end(), buffer_.mirror);
  }

  ncclResult_t issue() {
    const auto type = static_cast<ncclDataType_t>(message_.type);
    return is_send_ ? ncclSend(buffer_.at, message_.count, type, message_.to, comm_, stream_)
                    : pncclRecv(buffer_.at, message_.count, type, message_.from, comm_, stream_);
  }
  void check() const {
    const auto data = message_.data();
    require(GroupMemory::is_guarded(buffer_), "bytes beside a buffer");
    require(std::equal(data.begin(), data.end(), buffer_.mirror),
            "the bytes of " + message_.text());
  }

 private:
  DrawnMessage message_;
  bool is_send_;
  ncclComm_t comm_;
  cudaStream_t stream_;
  GuardedBuffer buffer_;
};

/// One rank's share of one call of a group.
class CallPart {
 public:
  CallPart(std::uint64_t seed, const DrawLimits& limits, const Member& member, GroupMemory& memory)
      : comm_(member.comm) {
    if (mix(seed, 1) % 4 != 0) {
      const auto call = draw_collective(seed, member.size, limits);
      text_ = call.text();
      collective_.emplace(call, member, memory);
      return;
    }
    const auto messages = draw_messages(seed, member.size, limits);
    text_ = fmt::format("{} messages among {} ranks, the first {}", messages.size(), member.size,
                        messages.front().text());
    for (const DrawnMessage& message : messages) {
      if (message.from == member.rank) messages_.emplace_back(message, true, member, memory);
      if (message.to == member.rank) messages_.emplace_back(message, false, member, memory);
    }
    needs_group_ = messages.size() > 1 || messages.front().from == messages.front().to;
  }

  bool needs_group() const { return needs_group_; }
  const std::string& text() const { return text_; }
  ncclComm_t comm() const { return comm_; }
  void issue() {
    if (collective_) require(collective_->issue(), text_.c_str());
    for (MessagePart& message : messages_) require(message.issue(), text_.c_str());
  }
  /// Returns the result of CollectivePart::check().
  std::uint64_t check(bool exact) const {
    try {
      for (const MessagePart& message : messages_) message.check();
      return collective_ ? collective_->check(exact) : 0;
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}: {}", text_, error.what()));
    }
  }

 private:
  ncclComm_t comm_;
  std::string text_;
  std::optional<CollectivePart> collective_;
  std::deque<MessagePart> messages_;
  bool needs_group_ = false;
};

}  // namespace oriel::test
