// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_queue_memory.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "net/queue/memory_keys.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

constexpr std::size_t kElementBytes = 64;
constexpr std::size_t kAdapterPage = 4096;

Mlx5RingLayout lay_out(std::uint32_t depth, std::uint32_t receives, std::size_t page) {
  Mlx5RingLayout made;
  made.wqebbs = receives * mlx5::kReceiveBytes;
  made.completions = round_up(made.wqebbs + depth * sizeof(dq::Wqebb), page);
  made.queue_record = depth * kElementBytes;
  made.completion_record = made.queue_record + 64;
  made.received_record = made.completion_record + 64;
  made.received = made.completions + round_up(made.received_record + 64, page);
  made.bytes = made.received + round_up(receives * kElementBytes, page);
  return made;
}

/// Layout of the users' own words. The slots come first, because they are registered with a key.
struct WordLayout {
  std::size_t slots_bytes;
  std::size_t indexes;
  std::size_t marks;
  std::size_t turns;
  std::size_t position;
  std::size_t bytes;

  WordLayout(const Mlx5Queue::Options& options, std::size_t page)
      : slots_bytes(round_up((options.fetch_slots + std::size_t{1}) * 8, page)),
        indexes(slots_bytes),
        marks(indexes + round_up(sizeof(dq::QueueIndexes), 128)),
        turns(marks + round_up(options.depth * std::size_t{8}, 128)),
        position(turns + round_up(options.fetch_slots * std::size_t{8}, 128)),
        bytes(round_up(position + sizeof(dq::ReceivePosition), page)) {}
};

}  // namespace

Status Mlx5QueueMemory::allocate(Mlx5Memory& memory, const Mlx5Queue::Options& options) {
  options_ = options;
  page_ = memory.page_bytes();
  layout_ = lay_out(options_.depth, options_.receives, page_);
  ORIEL_TRY(words_, memory.allocate(WordLayout(options_, page_).bytes));
  if (options_.ring_on_host) {
    ORIEL_TRY(rings_, memory.allocate_on_host(layout_.bytes));
  } else {
    ORIEL_TRY(rings_, memory.allocate(layout_.bytes));
  }
  return {};
}

Status Mlx5QueueMemory::fill() {
  const WordLayout words_at(options_, page_);
  Bytes image(layout_.bytes);
  const Bytes entries = mlx5::empty_receives(options_.receives);
  std::copy(entries.begin(), entries.end(), image.begin());
  // All ones mark a completion that has not been written.
  const auto fill_ones = [&](std::size_t at, std::uint32_t elements) {
    std::fill_n(image.begin() + static_cast<std::ptrdiff_t>(at), elements * kElementBytes,
                std::byte{0xff});
  };
  fill_ones(layout_.completions, options_.depth);
  fill_ones(layout_.received, options_.receives);
  ORIEL_CHECK(rings_->write(0, image));
  image.assign(words_at.bytes, std::byte{0});
  for (std::uint64_t slot = 0; slot < options_.fetch_slots; ++slot) {
    std::memcpy(image.data() + words_at.turns + slot * 8, &slot, sizeof slot);
  }
  // All receives count as posted from the beginning; connect() reports them to the adapter.
  const dq::ReceivePosition begin{.taken = 0, .posted = options_.receives};
  std::memcpy(image.data() + words_at.position, &begin, sizeof begin);
  return words_->write(0, image);
}

Status Mlx5QueueMemory::publish_receives() {
  if (options_.receives == 0) return {};
  const std::uint32_t word = dq::big_endian(options_.receives);
  return rings_->write(layout_.completions + layout_.queue_record,
                       std::as_bytes(std::span(&word, 1)));
}

void Mlx5QueueMemory::describe(dq::QueueView& view, dq::ReceiveView& receives) const {
  const WordLayout words_at(options_, page_);
  std::byte* const ring = rings_->user();
  std::byte* const tail = ring + layout_.completions;
  std::byte* const word = words_->user();
  view.ring = reinterpret_cast<dq::Wqebb*>(ring + layout_.wqebbs);
  view.depth = options_.depth;
  // The doorbell record's first word is for receives, the second for sends.
  auto* const record = reinterpret_cast<std::uint32_t*>(tail + layout_.queue_record);
  view.doorbell_record = record + 1;
  view.completion = reinterpret_cast<const dq::Completion*>(tail);
  view.indexes = reinterpret_cast<dq::QueueIndexes*>(word + words_at.indexes);
  view.marks = reinterpret_cast<std::uint64_t*>(word + words_at.marks);
  view.fetch_values = reinterpret_cast<std::uint64_t*>(word);
  view.fetch_turns = reinterpret_cast<std::uint64_t*>(word + words_at.turns);
  view.fetch_slots = options_.fetch_slots;
  view.fetch_lkey = slots_->lkey;
  if (options_.receives == 0) return;
  receives.completions = reinterpret_cast<const dq::Completion*>(ring + layout_.received);
  receives.record = record;
  receives.position = reinterpret_cast<dq::ReceivePosition*>(word + words_at.position);
  receives.count = options_.receives;
}

Status Mlx5QueueMemory::register_with(const Mlx5Device& device, Mlx5Memory& memory) {
  const auto export_of = [&](std::byte* address, std::size_t bytes) -> Result<Mlx5Export> {
    if (options_.ring_on_host) return Mlx5Export();
    return memory.export_range(address, bytes);
  };
  const std::size_t slots_bytes = WordLayout(options_, page_).slots_bytes;
  ORIEL_TRY(const Mlx5Export slots_at, memory.export_range(words_->own(), slots_bytes));
  ORIEL_TRY(slots_, device.register_memory(words_->own(), slots_bytes, slots_at, kLocalWrite));
  const auto register_part = [&](Mlx5UmemOwner& umem, std::size_t begin,
                                 std::size_t end) -> Status {
    std::byte* const part = rings_->own() + begin;
    ORIEL_TRY(const Mlx5Export at, export_of(part, end - begin));
    ORIEL_TRY(umem, device.register_umem(part, end - begin, at));
    return {};
  };
  ORIEL_CHECK(register_part(ring_umem_, 0, layout_.completions));
  ORIEL_CHECK(register_part(completion_umem_, layout_.completions, layout_.received));
  if (options_.receives == 0) return {};
  return register_part(received_umem_, layout_.received, layout_.bytes);
}

const std::uint32_t* Mlx5QueueMemory::own_send_record() const {
  return reinterpret_cast<const std::uint32_t*>(rings_->own() + layout_.completions +
                                                layout_.queue_record) +
         1;
}

std::uint32_t Mlx5QueueMemory::log_ring_page() const {
  if (options_.ring_on_host) return 0;
  return static_cast<std::uint32_t>(std::countr_zero(page_ / kAdapterPage));
}

}  // namespace oriel::net
