// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/places.hpp"
#include "kernels/algorithms/report_failure.hpp"

namespace oriel::kernels {

/// Handshake at the start of a streamed call, between the CTAs (or sub-CTAs) of one index on all
/// ranks. Each message carries the call's signature, the offsets of registered buffers,
/// and the rank's scalar. Handshake messages are flagged lines in slots of their own, with two
/// parities. Every thread reads them, so no thread empties the slots.
template <class Group>
class StreamHandshake {
 public:
  ORIEL_DEVICE_FN StreamHandshake(const AllReduceArguments& arguments, const Places& places,
                                  std::uint32_t epoch)
      : arguments_(arguments), places_(places), epoch_(epoch) {}

  /// Sends this rank's handshake message to all other ranks, each by one thread of the group.
  ORIEL_DEVICE_FN void send() const {
    const std::uint64_t words[kWords] = {
        arguments_.output_offset | static_cast<std::uint64_t>(arguments_.signature) << kOffsetBits,
        arguments_.input_offset, arguments_.scalar_bits};
    for (int rank = static_cast<int>(Group::rank()); rank < arguments_.ranks;
         rank += static_cast<int>(Group::size())) {
      if (rank == arguments_.rank) continue;
      std::byte* const slot = places_.hello(rank, epoch_ & 1, arguments_.rank);
      for (int i = 0; i < kWords; ++i) Words::send(slot + i * 16, words[i], line_flag(epoch_, 0));
    }
#if !ORIEL_DEVICE_CODE
    device::ring_fence();
    for (int rank = 0; rank < arguments_.ranks; ++rank) {
      if (rank != arguments_.rank) device::ring_fenced(places_.doorbell(rank));
    }
#endif
  }

  /// Waits for the handshake messages of all ranks. Sets a bit of `pulls` for each rank whose input
  /// is read in place. Sets a bit of `direct` for each rank whose output is written in place.
  /// Returns false, for all threads of the group, if the wait was given up or a rank is in another
  /// call.
  template <class DataOps>
  ORIEL_DEVICE_FN bool receive(std::uint64_t& pulls, std::uint64_t& direct, DataOps& ops) const {
    bool alive = true;
    for (int rank = 0; rank < arguments_.ranks && alive; ++rank) {
      if (rank == arguments_.rank) continue;
      std::uint64_t first = 0;
      alive = read(rank, 0, first);
      if (!alive) break;
      if (first >> kOffsetBits != arguments_.signature) {
        report_failure(arguments_, FailureKind::signature, rank);
        alive = false;
        break;
      }
      const std::uint64_t bit = std::uint64_t{1} << rank;
      const std::uint64_t output = first & kNoOffset;
      if (output != kNoOffset && output == arguments_.output_offset) direct |= bit;
      if constexpr (DataOps::kPulls || DataOps::kReadsAll) {
        if (!DataOps::kPulls && !arguments_.stream.reads_inputs) continue;
        std::uint64_t input = kNoOffset;
        alive = read(rank, 1, input);
        if (input == kNoOffset || input != arguments_.input_offset) continue;
        pulls |= bit;
        if constexpr (DataOps::kPulls) {
          std::uint64_t scalar = 0;
          alive = alive && read(rank, 2, scalar);
          ops.set_scalar(rank, scalar);
        }
      }
    }
    return !Group::any(!alive);
  }

 private:
  using Words = FlaggedLine<std::uint64_t>;
  static constexpr int kWords = 3;
  static_assert(kWords * 16 <= kHelloBytes);

  ORIEL_DEVICE_FN bool read(int rank, int word, std::uint64_t& value) const {
    const std::byte* const slot = places_.hello(arguments_.rank, epoch_ & 1, rank) + word * 16;
    Words::Raw raw;
    const auto arrived = [&] {
      raw = Words::load(slot);
      return Words::arrived(raw, line_flag(epoch_, 0));
    };
    if (device::wait_until(arrived, arguments_.wait, {rank, epoch_}) !=
        device::WaitOutcome::ready) {
      return false;
    }
    value = Words::payload(raw).element[0];
    return true;
  }

  const AllReduceArguments& arguments_;
  const Places& places_;
  std::uint32_t epoch_;
};

}  // namespace oriel::kernels
