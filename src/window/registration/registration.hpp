// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "boot/link/vote_record.hpp"
#include "window/exchange/fd_link.hpp"
#include "window/mapping/team_mapping.hpp"
#include "window/memory/mappable_memory.hpp"

/// The parts of a registration without I/O: checks, messages and the decisions that follow from
/// them. All of them except find_memory() are pure functions of their arguments.
namespace oriel::window {

/// One window that a rank wants to register.
struct WindowRequest {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  std::uint32_t flags = 0;
  /// Error that the caller has already found in this request; the registration reports it to all
  /// ranks.
  std::optional<Error> refused{};
};

/// NCCL_WIN_COLL_SYMMETRIC: in a collective all ranks pass the same offset in the window.
inline constexpr std::uint32_t kWindowSymmetric = 1;
/// All flags that exist.
inline constexpr std::uint32_t kWindowFlagsKnown = kWindowSymmetric;
/// Required alignment of windows, as in NCCL (NCCL_WIN_REQUIRED_ALIGNMENT).
inline constexpr std::size_t kWindowAlignment = 4096;
/// Maximum number of windows in one batch.
inline constexpr std::size_t kBatchMost = 65536;
/// Maximum number of allocations behind one window.
inline constexpr std::size_t kSegmentsMost = 65536;

/// Checks each request and finds its memory. Errors name the window by its index in the batch.
/// Local.
Result<std::vector<std::vector<Segment>>> find_memory(Memory& memory,
                                                      std::span<const WindowRequest> requests);

/// Number of windows whose sizes and flags fit in one agreement. agreed_fields() returns the values
/// on which all ranks of the world must agree. They are the number of windows, and the sizes and
/// flags of windows [first, first + kAgreedWindows).
inline constexpr std::size_t kAgreedWindows = 16;
std::vector<boot::AgreedField> agreed_fields(std::span<const WindowRequest> requests,
                                             std::size_t first);

/// One rank's description of a batch, sent to its team.
struct RankDetails {
  struct Window {
    std::uint64_t head = 0;  ///< offset of the window in its first allocation
    std::vector<SegmentInfo> segments;
    bool operator==(const Window&) const = default;
  };
  std::uint64_t slot_bytes = 0;
  std::uint64_t granularity = 0;
  std::vector<Window> windows;
  bool operator==(const RankDetails&) const = default;
};
RankDetails describe(std::span<const WindowRequest> requests,
                     std::span<const std::vector<Segment>> segments, std::size_t slot_bytes,
                     std::size_t granularity);
Bytes encode(const RankDetails& details);
/// Checks all of a peer's details: one window per request, each window inside its allocations. Each
/// allocation is a multiple of the granularity, and no sum exceeds the maximum slot size.
Result<RankDetails> decode_details(ByteView message, std::span<const WindowRequest> requests);

/// Describes the mappings that the team needs for a batch.
struct Plan {
  struct Window {
    std::size_t mapping = 0;        ///< index into `mappings`
    std::size_t behind_anchor = 0;  ///< slot offset of the window minus the mapping's anchor
  };
  std::vector<Window> windows;
  std::vector<MappingKey> mappings;  ///< without duplicates
  std::size_t granularity = 0;
};
/// Refuses differing slot sizes and granularities, naming two ranks and their values. Also refuses
/// a window whose offsets on two ranks do not differ by a multiple of the granularity. `ranks` are
/// world ranks. The result is equal on all ranks of the team.
Result<Plan> make_plan(std::span<const RankDetails> details, std::span<const int> ranks);

/// Offsets of a batch's new mappings within one contiguous place.
struct Layout {
  std::size_t bytes = 0;
  std::vector<std::size_t> offsets;  ///< by mapping; meaningless for mappings that are not new
};
Layout lay_out(const Plan& plan, const std::vector<bool>& is_new);

/// Message of one round of the agreement on places.
struct PlaceMessage {
  static constexpr std::uint64_t kNotAlive = ~std::uint64_t{0};
  bool failed = false;                 ///< this rank cannot continue; ignore the rest
  FdSocketName socket{};               ///< this process's listener, if needed
  std::vector<std::uint64_t> anchors;  ///< by mapping: its anchor, or kNotAlive
  std::uint64_t bytes = 0;             ///< needed for new mappings
  SlotSpace::Proposal proposal{};      ///< place for the new mappings; meaningless if bytes is 0
  bool operator==(const PlaceMessage&) const = default;
};
Bytes encode(const PlaceMessage& message);
Result<PlaceMessage> decode_place(ByteView message, std::size_t mappings);

/// Returns by mapping whether it must be made: true unless every rank reports it alive at one
/// anchor.
std::vector<bool> mappings_to_make(std::span<const PlaceMessage> messages, std::size_t mappings);

/// State of the search for a common place between two rounds; equal on all ranks.
struct PlaceSearch {
  std::size_t bytes = 0;  ///< needed for new mappings
  std::size_t floor = 0;
  SlotSpace::Pass pass = SlotSpace::Pass::eager;
};
/// Evaluates the proposals of all ranks. Returns the offset of the place, or nullopt after updating
/// `search` for the next round. A rank that finds no place in the waiting pass reports a failure
/// instead.
std::optional<std::size_t> settle(PlaceSearch& search, std::span<const PlaceMessage> places);

/// Handles that a process offers for its allocations. nullopt stands for a file descriptor, which
/// travels over a unix socket.
struct OfferMessage {
  bool failed = false;
  std::vector<std::optional<FabricHandle>> handles;
};
Bytes encode(const OfferMessage& message);
Result<OfferMessage> decode_offer(ByteView message, std::size_t handles);

/// Returns the allocations of the new mappings that the process with these slots must export,
/// without duplicates, in the order of their first occurrence.
std::vector<SegmentInfo> allocations_of(const Plan& plan, const std::vector<bool>& is_new,
                                        std::span<const int> slots);

}  // namespace oriel::window
