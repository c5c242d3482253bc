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
#include "boot/link/verdict.hpp"
#include "window/exchange/fd_link.hpp"
#include "window/mapping/team_mapping.hpp"
#include "window/memory/mappable_memory.hpp"

/// The parts of a registration that need no I/O: checks, messages, and what follows from them.
/// Everything here is a function of its arguments.
namespace oriel::window {

/// One window that a rank wants to register.
struct WindowRequest {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  std::uint32_t flags = 0;
  /// What the caller has already found wrong with it: all ranks then learn of that.
  std::optional<Error> refused{};
};

/// NCCL_WIN_COLL_SYMMETRIC: in a collective all ranks pass the same offset in the window.
inline constexpr std::uint32_t kWindowSymmetric = 1;
/// The only flag there is.
inline constexpr std::uint32_t kWindowFlagsKnown = kWindowSymmetric;
/// Windows begin at multiples of this, as NCCL demands (NCCL_WIN_REQUIRED_ALIGNMENT).
inline constexpr std::size_t kWindowAlignment = 4096;
/// Windows in one batch.
inline constexpr std::size_t kBatchMost = 65536;
/// Allocations behind one window.
inline constexpr std::size_t kSegmentsMost = 65536;

/// Checks each request on its own and finds its memory; the error names the window by its place in
/// the batch. Local.
Result<std::vector<std::vector<Segment>>> find_memory(Memory& memory,
                                                      std::span<const WindowRequest> requests);

/// What all ranks of the world must agree on besides the number of windows: sizes and flags of the
/// windows [first, first + kAgreedWindows) of a batch of `count`.
inline constexpr std::size_t kAgreedWindows = 16;
std::vector<boot::AgreedField> agreed_fields(std::span<const WindowRequest> requests,
                                             std::size_t first);

/// What a rank tells its team of a batch.
struct RankDetails {
  struct Window {
    std::uint64_t head = 0;  ///< where in its first allocation the window begins
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
/// Checks all of a peer's details: windows as many as there are sizes, each inside its allocations,
/// allocations whole granules, no sum past the slot size.
Result<RankDetails> decode_details(ByteView message, std::span<const WindowRequest> requests);

/// What the team has to have mapped for a batch.
struct Plan {
  struct Window {
    std::size_t mapping = 0;        ///< which of `mappings`
    std::size_t behind_anchor = 0;  ///< the window's slot offset less the mapping's anchor
  };
  std::vector<Window> windows;
  std::vector<MappingKey> mappings;  ///< each once
  std::size_t granularity = 0;
};
/// Refuses slot sizes and granularities that differ, and offsets of one window that differ by less
/// than a granule, naming two ranks and their values. `ranks` are world ranks. All ranks of the
/// team come to the same result.
Result<Plan> make_plan(std::span<const RankDetails> details, std::span<const int> ranks);

/// Where the mappings of a batch that are new lie within one contiguous place.
struct Layout {
  std::size_t bytes = 0;
  std::vector<std::size_t> offsets;  ///< of each mapping; of no meaning for those that are not new
};
Layout lay_out(const Plan& plan, const std::vector<bool>& is_new);

/// One round of the agreement on places.
struct PlaceMessage {
  static constexpr std::uint64_t kNotAlive = ~std::uint64_t{0};
  bool failed = false;                 ///< this rank cannot go on; the rest is of no meaning
  FdSocketName socket{};               ///< where this process listens, if it is not connected yet
  std::vector<std::uint64_t> anchors;  ///< of each mapping that is alive here, else kNotAlive
  std::uint64_t bytes = 0;             ///< wanted for new mappings
  SlotSpace::Proposal proposal{};      ///< for them; of no meaning if bytes is 0
  bool operator==(const PlaceMessage&) const = default;
};
Bytes encode(const PlaceMessage& message);
Result<PlaceMessage> decode_place(ByteView message, std::size_t mappings);

/// The mappings that need not be made, because every rank reports them alive at one anchor.
std::vector<bool> mappings_to_make(std::span<const PlaceMessage> messages, std::size_t mappings);

/// Where the search for a common place stands between two rounds: the same on all ranks.
struct PlaceSearch {
  std::size_t bytes = 0;  ///< wanted for new mappings
  std::size_t floor = 0;
  SlotSpace::Pass pass = SlotSpace::Pass::eager;
};
/// What follows from the proposals of all ranks: the offset of the place, or nullopt, and `search`
/// is that of the next round. A rank that finds nothing in the patient pass says so by failing.
std::optional<std::size_t> settle(PlaceSearch& search, std::span<const PlaceMessage> places);

/// The handles that a process offers for its allocations: nullopt stands for a file descriptor,
/// which travels on its own.
struct OfferMessage {
  bool failed = false;
  std::vector<std::optional<FabricHandle>> handles;
};
Bytes encode(const OfferMessage& message);
Result<OfferMessage> decode_offer(ByteView message, std::size_t handles);

/// The allocations of the new mappings that the process of these slots has to offer: each once, in
/// the order in which they first occur.
std::vector<SegmentInfo> allocations_of(const Plan& plan, const std::vector<bool>& is_new,
                                        std::span<const int> slots);

}  // namespace oriel::window
