// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/registration.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "window/memory/memory_block.hpp"

namespace oriel::window {
namespace {

// No flat space is larger; keeps sums of sizes from wrapping.
constexpr std::uint64_t kBytesMost = std::uint64_t{1} << 46;

Status check_request(const WindowRequest& request) {
  const auto address = reinterpret_cast<std::uintptr_t>(request.pointer);
  if (request.pointer == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the pointer is null, with a size of {} bytes", request.bytes))
        .with_hint("pass memory of ncclMemAlloc");
  }
  if (request.bytes == 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the size is 0, for memory at {}", request.pointer))
        .with_hint("pass at least 1 byte on every rank");
  }
  if (address % kWindowAlignment != 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("pointer {} is not a multiple of {} bytes", request.pointer,
                             kWindowAlignment))
        .with_hint("pass memory of ncclMemAlloc, or round the address up");
  }
  if ((request.flags & ~kWindowFlagsKnown) != 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("unknown flag bits {:#x}; known are {:#x}",
                             request.flags & ~kWindowFlagsKnown, kWindowFlagsKnown))
        .with_hint("pass NCCL_WIN_DEFAULT, or flags of the library's own header");
  }
  if (request.bytes > kBytesMost || request.bytes > UINTPTR_MAX - address) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {} are more than there can be: at most {}, inside the "
                             "address space",
                             request.bytes, request.pointer, kBytesMost))
        .with_hint("pass the size of the buffer in bytes");
  }
  return {};
}

Error malformed(const std::string& what) {
  return Error(ErrorCode::remote, "a message of a window registration is malformed: " + what);
}

Result<bool> get_truth(ByteReader& reader) {
  const auto value = reader.get<std::uint8_t>();
  if (value > 1) return malformed(fmt::format("a truth value is {}, not 0 or 1", value));
  return value == 1;
}

}  // namespace

Result<std::vector<std::vector<Segment>>> find_memory(Memory& memory,
                                                      std::span<const WindowRequest> requests) {
  if (requests.size() > kBatchMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} windows at once; the limit is {}", requests.size(), kBatchMost))
        .with_hint("register the windows in several groups");
  }
  std::vector<std::vector<Segment>> found;
  for (const WindowRequest& request : requests) {
    const auto context = [&] { return fmt::format("window {} of the batch", found.size()); };
    if (request.refused) return Error(*request.refused).with_context(context());
    if (Status checked = check_request(request); !checked.ok()) {
      return std::move(checked).error().with_context(context());
    }
    auto segments = memory.find_segments(request.pointer, request.bytes);
    if (!segments.ok()) return std::move(segments).error().with_context(context());
    if (segments->size() > kSegmentsMost) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{} allocations behind one window; the limit is {}",
                               segments->size(), kSegmentsMost))
          .with_hint("allocate the memory in fewer and larger pieces, or register several windows")
          .with_context(context());
    }
    found.push_back(std::move(segments).value());
  }
  return found;
}

std::vector<boot::AgreedField> agreed_fields(std::span<const WindowRequest> requests,
                                             std::size_t first) {
  // Builds the same number of fields for every batch size. VoteRecord::merge() refuses different
  // numbers, so an error would not name the batch sizes.
  std::vector<boot::AgreedField> fields;
  fields.push_back({"the number of windows", requests.size()});
  for (std::size_t i = first; i < first + kAgreedWindows; ++i) {
    const bool exists = i < requests.size();
    fields.push_back({fmt::format("the size of window {}", i), exists ? requests[i].bytes : 0});
    fields.push_back({fmt::format("the flags of window {}", i), exists ? requests[i].flags : 0});
  }
  return fields;
}

RankDetails describe(std::span<const WindowRequest> requests,
                     std::span<const std::vector<Segment>> segments, std::size_t slot_bytes,
                     std::size_t granularity) {
  RankDetails details;
  details.slot_bytes = slot_bytes;
  details.granularity = granularity;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    RankDetails::Window window;
    window.head = static_cast<std::uint64_t>(static_cast<std::byte*>(requests[i].pointer) -
                                             segments[i].front().base);
    for (const Segment& segment : segments[i]) {
      window.segments.push_back({segment.allocation->id(), segment.bytes});
    }
    details.windows.push_back(std::move(window));
  }
  return details;
}

Bytes encode(const RankDetails& details) {
  ByteWriter writer;
  writer.put(details.slot_bytes).put(details.granularity);
  for (const auto& window : details.windows) {
    writer.put(window.head).put(static_cast<std::uint32_t>(window.segments.size()));
    for (const SegmentInfo& segment : window.segments) {
      writer.put(segment.id.process).put(segment.id.serial).put(segment.bytes);
    }
  }
  return writer.take();
}

Result<RankDetails> decode_details(ByteView message, std::span<const WindowRequest> requests) {
  ByteReader reader(message);
  RankDetails details;
  details.slot_bytes = reader.get<std::uint64_t>();
  details.granularity = reader.get<std::uint64_t>();
  if (!reader.good() || details.slot_bytes > kBytesMost || details.granularity == 0 ||
      details.granularity > details.slot_bytes) {
    return malformed(fmt::format("a slot of {} bytes with a granularity of {}; the limit is {}",
                                 details.slot_bytes, details.granularity, kBytesMost));
  }
  for (const WindowRequest& request : requests) {
    RankDetails::Window window;
    window.head = reader.get<std::uint64_t>();
    const auto count = reader.get<std::uint32_t>();
    if (count == 0 || count > kSegmentsMost) {
      return malformed(
          fmt::format("a window of {} allocations, not of 1 to {}", count, kSegmentsMost));
    }
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < count && reader.good(); ++i) {
      SegmentInfo segment;
      segment.id.process = reader.get<std::uint64_t>();
      segment.id.serial = reader.get<std::uint64_t>();
      segment.bytes = reader.get<std::uint64_t>();
      if (segment.bytes == 0 || segment.bytes > kBytesMost ||
          segment.bytes % details.granularity != 0) {
        return malformed(fmt::format("an allocation of {} bytes, not of a multiple of {} up to {}",
                                     segment.bytes, details.granularity, kBytesMost));
      }
      total += segment.bytes;
      if (total > kBytesMost) {
        return malformed(
            fmt::format("allocations of {} bytes; the limit is {}", total, kBytesMost));
      }
      window.segments.push_back(segment);
    }
    if (reader.good() &&
        (window.head >= window.segments.front().bytes || request.bytes > total - window.head)) {
      return malformed(fmt::format("a window of {} bytes at {} of its allocations of {} bytes",
                                   request.bytes, window.head, total));
    }
    details.windows.push_back(std::move(window));
  }
  ORIEL_CHECK(reader.finish("details of windows"));
  return details;
}

namespace {

/// Refuses a value that differs between two ranks of the team.
Status check_equal(const char* what, std::span<const RankDetails> details,
                   std::span<const int> ranks, std::uint64_t RankDetails::*member,
                   const char* hint) {
  for (std::size_t i = 1; i < details.size(); ++i) {
    if (details[i].*member == details[0].*member) continue;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} differs: {} bytes on rank {}, {} bytes on rank {}", what,
                             details[0].*member, ranks[0], details[i].*member, ranks[i]))
        .with_origin(ranks[i])
        .with_hint(hint);
  }
  return {};
}

Status check_congruent(std::size_t window, std::span<const RankDetails> details,
                       std::span<const int> ranks) {
  const std::uint64_t granularity = details[0].granularity;
  const std::uint64_t head = details[0].windows[window].head;
  for (std::size_t i = 1; i < details.size(); ++i) {
    const std::uint64_t other = details[i].windows[window].head;
    if (head % granularity == other % granularity) continue;
    return Error(
               ErrorCode::invalid_usage,
               fmt::format("window {} begins {} bytes into its allocation on rank {} and {} bytes "
                           "on rank {}; the two may differ by multiples of {} bytes only",
                           window, head, ranks[0], other, ranks[i], granularity))
        .with_origin(ranks[i])
        .with_hint("register a buffer at the same offset of its allocation on every rank");
  }
  return {};
}

}  // namespace

Result<Plan> make_plan(std::span<const RankDetails> details, std::span<const int> ranks) {
  ORIEL_CHECK(check_equal("the slot size", details, ranks, &RankDetails::slot_bytes,
                          "set ORIEL_BIG_SIZE to the same value on all ranks"));
  ORIEL_CHECK(
      check_equal("the mapping granularity", details, ranks, &RankDetails::granularity,
                  "use GPUs of one kind, and one driver version, on all ranks of the team"));
  Plan plan;
  plan.granularity = details[0].granularity;
  std::map<MappingKey, std::size_t> known;
  for (std::size_t window = 0; window < details[0].windows.size(); ++window) {
    ORIEL_CHECK(check_congruent(window, details, ranks));
    std::uint64_t least = details[0].windows[window].head;
    for (const auto& rank : details) least = std::min(least, rank.windows[window].head);
    MappingKey key;
    for (const auto& rank : details) {
      const auto& mine = rank.windows[window];
      key.ranks.push_back({mine.head - least, mine.segments});
    }
    const auto [at, is_new] = known.try_emplace(key, plan.mappings.size());
    if (is_new) plan.mappings.push_back(std::move(key));
    plan.windows.push_back({at->second, least});
  }
  return plan;
}

Layout lay_out(const Plan& plan, const std::vector<bool>& is_new) {
  Layout layout;
  layout.offsets.resize(plan.mappings.size());
  for (std::size_t i = 0; i < plan.mappings.size(); ++i) {
    if (!is_new[i]) continue;
    const std::size_t extent = extent_bytes(plan.mappings[i]);
    // Aligns as SlotSpace aligns whole places, so that large mappings can have huge pages.
    const std::size_t unit =
        extent >= kHugePageBytes ? std::max(plan.granularity, kHugePageBytes) : plan.granularity;
    layout.offsets[i] = round_up(layout.bytes, unit);
    layout.bytes = layout.offsets[i] + round_up(extent, plan.granularity);
  }
  return layout;
}

Bytes encode(const PlaceMessage& message) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(message.failed)).put_raw(message.socket);
  writer.put(message.bytes).put(message.proposal.kind).put(message.proposal.offset);
  writer.put(static_cast<std::uint32_t>(message.anchors.size()));
  for (const std::uint64_t anchor : message.anchors) writer.put(anchor);
  return writer.take();
}

Result<PlaceMessage> decode_place(ByteView message, std::size_t mappings) {
  ByteReader reader(message);
  PlaceMessage place;
  ORIEL_TRY(place.failed, get_truth(reader));
  const ByteView name = reader.get_raw(place.socket.size());
  std::copy(name.begin(), name.end(), place.socket.begin());
  place.bytes = reader.get<std::uint64_t>();
  const auto kind = reader.get<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(SlotSpace::Proposal::Kind::waits)) {
    return malformed(fmt::format("a proposal of kind {}", kind));
  }
  place.proposal.kind = static_cast<SlotSpace::Proposal::Kind>(kind);
  place.proposal.offset = reader.get<std::uint64_t>();
  const auto count = reader.get<std::uint32_t>();
  if (reader.good() && !place.failed && count != mappings) {
    return malformed(fmt::format("{} mappings instead of {}", count, mappings));
  }
  for (std::uint32_t i = 0; i < count && reader.good(); ++i) {
    place.anchors.push_back(reader.get<std::uint64_t>());
  }
  ORIEL_CHECK(reader.finish("place of windows"));
  return place;
}

std::vector<bool> mappings_to_make(std::span<const PlaceMessage> messages, std::size_t mappings) {
  std::vector<bool> is_new(mappings);
  for (std::size_t i = 0; i < mappings; ++i) {
    const std::uint64_t anchor = messages[0].anchors[i];
    is_new[i] = anchor == PlaceMessage::kNotAlive ||
                std::any_of(messages.begin(), messages.end(),
                            [&](const auto& message) { return message.anchors[i] != anchor; });
  }
  return is_new;
}

std::optional<std::size_t> settle(PlaceSearch& search, std::span<const PlaceMessage> places) {
  using Kind = SlotSpace::Proposal::Kind;
  const bool ended = std::any_of(places.begin(), places.end(), [](const PlaceMessage& place) {
    return place.bytes > 0 && place.proposal.kind == Kind::none;
  });
  if (ended) {
    search.floor = 0;
    search.pass = SlotSpace::Pass::waiting;
    return std::nullopt;
  }
  bool agreed = true;
  for (const PlaceMessage& place : places) {
    // Ignores the offset of a proposal for another size. Such a proposal prevents an agreement.
    const bool fits = place.bytes == search.bytes;
    agreed = agreed && fits && place.proposal.kind == Kind::held &&
             place.proposal.offset == places[0].proposal.offset;
    if (fits) search.floor = std::max<std::size_t>(search.floor, place.proposal.offset);
  }
  return agreed ? std::optional(search.floor) : std::nullopt;
}

Bytes encode(const OfferMessage& message) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(message.failed));
  for (const auto& handle : message.handles) {
    writer.put(static_cast<std::uint8_t>(handle.has_value()));
    if (handle) writer.put_raw(*handle);
  }
  return writer.take();
}

Result<OfferMessage> decode_offer(ByteView message, std::size_t handles) {
  ByteReader reader(message);
  OfferMessage offer;
  ORIEL_TRY(offer.failed, get_truth(reader));
  for (std::size_t i = 0; !offer.failed && reader.good() && i < handles; ++i) {
    ORIEL_TRY(const bool is_inline, get_truth(reader));
    if (!is_inline) {
      offer.handles.emplace_back();
      continue;
    }
    FabricHandle handle{};
    const ByteView raw = reader.get_raw(handle.size());
    std::copy(raw.begin(), raw.end(), handle.begin());
    offer.handles.emplace_back(handle);
  }
  ORIEL_CHECK(reader.finish("handles of windows"));
  return offer;
}

std::vector<SegmentInfo> allocations_of(const Plan& plan, const std::vector<bool>& is_new,
                                        std::span<const int> slots) {
  std::vector<SegmentInfo> all;
  std::set<AllocationId> seen;
  for (std::size_t i = 0; i < plan.mappings.size(); ++i) {
    if (!is_new[i]) continue;
    for (const int slot : slots) {
      for (const auto& segment : plan.mappings[i].ranks[static_cast<std::size_t>(slot)].segments) {
        if (seen.insert(segment.id).second) all.push_back(segment);
      }
    }
  }
  return all;
}

}  // namespace oriel::window
