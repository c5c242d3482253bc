// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/places.hpp"

/// Exchanges small messages between CPU ranks in cache lines, each with its own flag. The receiver
/// waits for the data alone, and for no other word before or after them.
namespace oriel::kernels {

/// A cache line of a message, in the receiver's memory. The sender writes the payload and then the
/// flag with release; the receiver waits for the flag with acquire. Payload and flag share a cache
/// line, so the message costs one transfer per line.
///
/// The flag is the number of the call and kEagerSignatureBits of its signature. So a line of a rank
/// that is in another call matches this call only if the hashed signatures agree in these bits.
/// Numbers repeat only after some years of the smallest calls. They are never zero, as fresh memory
/// is.
struct alignas(kEagerLineBytes) EagerLine {
  std::byte payload[kEagerPayloadBytes];
  std::uint64_t flag;
};
static_assert(sizeof(EagerLine) == kEagerLineBytes);
inline constexpr std::uint32_t kEagerSignatureBits = 16;

/// The lines between a CPU rank and all others in one call: one message for each pair and
/// direction.
///
/// A line is used again two calls later (see kParities), so no rank ever waits for space.
class EagerExchange {
 public:
  explicit EagerExchange(const AllReduceArguments& arguments)
      : arguments_(arguments), places_(arguments, 0) {
    const std::uint64_t calls = places_.counters()->eager_calls;
    number_ = calls + 1;
    flag_ = number_ << kEagerSignatureBits |
            arguments.signature >> (kSignatureBits - kEagerSignatureBits);
    offset_ = arguments.layout.eager + (calls % kParities) * kEagerBytes;
  }

  /// Writes `bytes` bytes at `from` (any alignment) into the lines at `rank`, from line `first` on.
  void send(int rank, std::uint64_t first, const std::byte* from, std::size_t bytes) const {
    EagerLine* line = lines_of(rank, arguments_.rank) + first;
    const std::size_t lines = device::divide_up(bytes, kEagerPayloadBytes);
    // The receiver read these lines two calls ago, so they must come back from its cache. Stores
    // leave the processor in order: without prefetches, the lines would come back one after the
    // other.
    for (std::size_t i = 0; i < std::min(lines, kAhead); ++i)
      device::arch::prefetch_for_write(line + i);
    for (std::size_t i = 0; i < lines; ++i, ++line) {
      if (i + kAhead < lines) device::arch::prefetch_for_write(line + kAhead);
      const std::size_t part = std::min(bytes - i * kEagerPayloadBytes, kEagerPayloadBytes);
      copy_payload(line->payload, from + i * kEagerPayloadBytes, part);
      device::Memory::store<device::Order::release>(&line->flag, flag_);
    }
  }

  /// Rings the doorbells of all other ranks, in case they sleep in a wait for these lines.
  void publish() const {
    device::ring_fence();
    for (int rank = 0; rank < arguments_.ranks; ++rank) {
      if (rank != arguments_.rank) device::ring_fenced(places_.doorbell(rank));
    }
  }

  /// Waits for the message of `rank` and copies it to `to`. Returns false if the wait was given up;
  /// the caller must then send nothing more.
  [[nodiscard]] bool receive(int rank, std::uint64_t first, std::byte* to,
                             std::size_t bytes) const {
    const EagerLine* line = lines_of(arguments_.rank, rank) + first;
    if (bytes > kEagerPayloadBytes && bytes <= 2 * kEagerPayloadBytes) poll_two(line);
    for (; bytes > 0; ++line) {
      if (!arrived(*line) && !await(*line, rank)) return false;
      const std::size_t part = std::min(bytes, kEagerPayloadBytes);
      copy_payload(to, line->payload, part);
      to += part;
      bytes -= part;
    }
    return true;
  }

  /// Ends the call; the next call uses the other parity.
  void end() const { places_.counters()->eager_calls = number_; }

 private:
  /// Lines that a sender prefetches before it writes them.
  static constexpr std::size_t kAhead = 16;
  /// Polls of a line before the wait that an abort or a timeout can end.
  static constexpr std::uint32_t kQuickPolls = 256;

  /// Returns the lines at `owner` for messages from `source`.
  EagerLine* lines_of(int owner, int source) const {
    const std::uint32_t index = slot_of(source, owner, arguments_.ranks);
    return reinterpret_cast<EagerLine*>(
        places_.scratch(owner, offset_ + index * arguments_.layout.eager_source_bytes));
  }

  static void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == kEagerPayloadBytes) {
      std::memcpy(to, from, kEagerPayloadBytes);  // constant size: a few vector moves
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  /// Polls two lines for a while, so that both transfers overlap; the caller checks whether they
  /// have arrived. This gains 4 to 16 % for messages of exactly two lines (docs/notes/cpu.md). For
  /// longer messages it gains nothing or loses: the other lines arrive together once the first has
  /// arrived.
  [[gnu::noinline]] void poll_two(const EagerLine* line) const {
    for (std::uint32_t poll = 0; poll < kQuickPolls; ++poll) {
      const bool first = arrived(line[0]);
      const bool second = arrived(line[1]);
      if (first && second) return;
    }
  }

  bool arrived(const EagerLine& line) const {
    return device::Memory::load<device::Order::acquire>(&line.flag) == flag_;
  }
  [[nodiscard]] bool await(const EagerLine& line, int rank) const {
    for (std::uint32_t poll = 0; poll < kQuickPolls; ++poll) {
      if (arrived(line)) return true;
    }
    return device::wait_until([&] { return arrived(line); }, arguments_.wait, {rank, number_}) ==
           device::WaitOutcome::ready;
  }

  const AllReduceArguments& arguments_;
  Places places_;
  std::uint64_t offset_ = 0;  // offset in scratch memory of the lines of the call's parity
  std::uint64_t number_ = 0;  // number of the call, from 1
  std::uint64_t flag_ = 0;
};

}  // namespace oriel::kernels
