// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/call_checks.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "comm/request/call_text.hpp"

namespace oriel::comm {
namespace {

Error bad_argument(const CollectiveRequest& request, std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message))
      .with_context("checking the arguments of " + with_article(name_of(request.collective)));
}

Error null_buffer(const CollectiveRequest& request, const char* name) {
  return bad_argument(request, fmt::format("{} is null, with {} elements of {}", name,
                                           request.count, name_of(request.type)))
      .with_hint("pass a buffer on each rank that sends or receives, or count 0 on all ranks");
}

/// A half-open range of addresses; empty for a buffer that the rank does not use.
struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

/// Address ranges of the buffers that the rank uses in a call.
class CallRanges {
 public:
  CallRanges(const CollectiveRequest& request, int rank, int size)
      : request_(request),
        bytes_(request.count * size_of(request.type)),
        own_block_(static_cast<std::uintptr_t>(rank) * bytes_) {
    const bool is_root = !has_root(request.collective) || request.root == rank;
    const bool root_sends = request.collective == kernels::Collective::broadcast ||
                            request.collective == kernels::Collective::scatter;
    const auto ranks = static_cast<std::size_t>(size);
    uses_input = is_root || !root_sends;
    uses_output = is_root || root_sends;
    if (uses_input) input_ = range(request.input, sends_blocks(request.collective) ? ranks : 1);
    if (uses_output) {
      output_ = range(request.output, receives_blocks(request.collective) ? ranks : 1);
    }
  }

  bool uses_input = true;
  bool uses_output = true;

  /// Returns the rule that overlapping buffers break; null if they break none.
  const char* broken_rule() const {
    if (!uses_input || !uses_output || !input_.meets(output_)) return nullptr;
    const bool rooted = has_root(request_.collective);
    // An all-to-all in place may overwrite blocks before they are sent. As in NCCL it runs, and the
    // result is undefined.
    const bool exchanges = request_.collective == kernels::Collective::all_to_all;
    if (receives_blocks(request_.collective) && !exchanges) {
      if (input_.begin == output_.begin + own_block_) return nullptr;
      return rooted ? "sendbuff is not recvbuff + root * count elements"
                    : "sendbuff is not recvbuff + rank * sendcount elements";
    }
    if (sends_blocks(request_.collective) && !exchanges) {
      if (output_.begin == input_.begin + own_block_) return nullptr;
      return rooted ? "recvbuff is not sendbuff + root * count elements"
                    : "recvbuff is not sendbuff + rank * recvcount elements";
    }
    return input_.begin == output_.begin ? nullptr : "are not equal";
  }

 private:
  Range range(const void* data, std::size_t blocks) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {begin, begin + blocks * bytes_};
  }

  const CollectiveRequest& request_;
  std::size_t bytes_;         // bytes of one block
  std::uintptr_t own_block_;  // offset of this rank's block in bytes
  Range input_;
  Range output_;
};

/// Returns how many elements fit into memory. Element sizes are powers of two, so that a shift
/// replaces a division.
std::size_t most_elements(DataType type) {
  return (SIZE_MAX / 8) >> __builtin_ctzll(size_of(type));
}

// The errors of sends and receives are made apart from the checks, which are part of every call.

Error bad_argument(const PointToPointRequest& request, std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message))
      .with_context(request.is_send ? "checking the arguments of a send"
                                    : "checking the arguments of a receive");
}

Status refuse_peer(const PointToPointRequest& request, int size) {
  return bad_argument(request,
                      fmt::format("peer is {}, but ranks go from 0 to {}", request.peer, size - 1))
      .with_hint("pass a rank of the communicator");
}

Status refuse_count(const PointToPointRequest& request, std::size_t most) {
  return bad_argument(request, fmt::format("count {} is larger than memory: at most {} of {}",
                                           request.count, most, name_of(request.type)))
      .with_hint("pass a count of elements, not of bytes, that the buffer holds");
}

Status refuse_null(const PointToPointRequest& request) {
  return bad_argument(request, fmt::format("{} is null, with {} elements of {}",
                                           request.is_send ? "sendbuff" : "recvbuff", request.count,
                                           name_of(request.type)))
      .with_hint("pass a buffer of that many elements, or count 0 on both ranks");
}

}  // namespace

Status check_root(const CollectiveRequest& request, int size) {
  if (!has_root(request.collective)) return {};
  if (request.root >= 0 && request.root < size) return {};
  return bad_argument(request,
                      fmt::format("root is {}, but ranks go from 0 to {}", request.root, size - 1))
      .with_hint("pass a rank of the communicator, the same on every rank");
}

Status check_collective(const CollectiveRequest& request, int rank, int size) {
  const std::size_t element = size_of(request.type);
  std::size_t most = most_elements(request.type);
  if (sends_blocks(request.collective) || receives_blocks(request.collective)) {
    most /= static_cast<std::size_t>(size);
  }
  if (request.count > most) {
    return bad_argument(request, fmt::format("count {} is larger than memory: at most {} of {}",
                                             request.count, most, name_of(request.type)))
        .with_hint("pass a count of elements, not of bytes, that the buffers hold");
  }
  const CallRanges ranges(request, rank, size);
  if (ranges.uses_input && request.input == nullptr) return null_buffer(request, "sendbuff");
  if (ranges.uses_output && request.output == nullptr) return null_buffer(request, "recvbuff");
  const auto is_off = [&](bool is_used, const void* data) {
    return is_used && (reinterpret_cast<std::uintptr_t>(data) & (element - 1)) != 0;
  };
  const bool input_off = is_off(ranges.uses_input, request.input);
  if (input_off || is_off(ranges.uses_output, request.output)) {
    return bad_argument(request,
                        fmt::format("{} is not aligned to {}, whose elements have {} bytes: {}",
                                    input_off ? "sendbuff" : "recvbuff", name_of(request.type),
                                    element, input_off ? request.input : request.output))
        .with_hint(fmt::format("pass an address that is a multiple of {}", element));
  }
  if (const char* const rule = ranges.broken_rule()) {
    return bad_argument(request, fmt::format("sendbuff {} and recvbuff {} overlap, but {}",
                                             request.input, request.output, rule))
        .with_hint("use buffers that do not overlap, or the one place of an in-place call");
  }
  return {};
}

Status check_point_to_point(const PointToPointRequest& request, int size) {
  if (request.peer < 0 || request.peer >= size) return refuse_peer(request, size);
  const std::size_t most = most_elements(request.type);
  if (request.count > most) return refuse_count(request, most);
  if (request.data == nullptr && request.count > 0) return refuse_null(request);
  return {};
}

}  // namespace oriel::comm
