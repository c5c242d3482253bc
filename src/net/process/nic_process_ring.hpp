// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "oriel/error.hpp"

#include "net/process/nic_process_message.hpp"

/// Memory of one stream of copies, shared by the rank's process and the process that copies: a
/// header page, a ring of commands, slots. The rank writes `produced`, the commands, and the slots
/// of stores. The other process writes everything else.
namespace oriel::net {

inline constexpr std::uint32_t kNicCommands = 1024;
inline constexpr std::size_t kNicHeaderBytes = 4096;
inline constexpr std::size_t kNicRingBytes = kNicCommands * sizeof(NicCommand);

struct NicChannelHeader {
  alignas(128) std::uint64_t produced;  ///< commands since the start
  alignas(128) std::uint64_t consumed;
  std::uint32_t asleep;               ///< 1 if the process has to be woken
  alignas(128) std::uint64_t count;   ///< latest value of NicCommand::signal
  alignas(128) std::uint32_t failed;  ///< 1 after an error; written after the two below
  std::int32_t native;
  std::array<char, 480> text;
  alignas(128) std::uint64_t first_word;  ///< target of a dummy copy, which nobody reads
};
static_assert(sizeof(NicChannelHeader) <= kNicHeaderBytes);

inline std::size_t channel_bytes(std::uint32_t slots, std::uint32_t slot_bytes) {
  return kNicHeaderBytes + kNicRingBytes + std::size_t{slots} * slot_bytes;
}

/// One side's mapping of a channel, of channel_bytes() and page-aligned.
class NicChannelMemory {
 public:
  explicit NicChannelMemory(std::byte* at) : at_(at) {}
  std::byte* slots() const { return at_ + kNicHeaderBytes + kNicRingBytes; }
  NicCommand& command(std::uint64_t index) const {
    return *reinterpret_cast<NicCommand*>(at_ + kNicHeaderBytes +
                                          index % kNicCommands * sizeof(NicCommand));
  }
  NicChannelHeader& header() const { return *reinterpret_cast<NicChannelHeader*>(at_); }
  std::atomic_ref<std::uint64_t> produced() const { return std::atomic_ref(header().produced); }
  std::atomic_ref<std::uint64_t> consumed() const { return std::atomic_ref(header().consumed); }
  std::atomic_ref<std::uint64_t> count() const { return std::atomic_ref(header().count); }
  std::atomic_ref<std::uint32_t> asleep() const { return std::atomic_ref(header().asleep); }
  std::atomic_ref<std::uint32_t> failed() const { return std::atomic_ref(header().failed); }

 private:
  std::byte* at_;
};

/// The process's end of the ring. The rank may write anything there at any time, so a command is
/// copied, and only the copy is checked and executed.
class NicRingReader {
 public:
  static constexpr int kCommandsOfTurn = 64;

  bool has_commands(const NicChannelMemory& memory) const {
    return memory.produced().load(std::memory_order_acquire) != consumed_;
  }
  /// Takes some commands from the ring and passes them to `begin`. Call release() then. After an
  /// error the ring must not be used any more.
  template <class Find, class Begin>
  Status take(const NicChannelMemory& memory, std::uint64_t staging_bytes, const Find& find,
              const Begin& begin);
  /// Frees the ring entries of taken commands for the rank.
  void release(const NicChannelMemory& memory) const {
    memory.consumed().store(consumed_, std::memory_order_release);
  }

 private:
  std::uint64_t consumed_ = 0;
};

template <class Find, class Begin>
Status NicRingReader::take(const NicChannelMemory& memory, std::uint64_t staging_bytes,
                           const Find& find, const Begin& begin) {
  const std::uint64_t produced = memory.produced().load(std::memory_order_acquire);
  if (produced < consumed_ || produced - consumed_ > kNicCommands) {
    return Error(ErrorCode::remote,
                 fmt::format("a software NIC's ring has {} commands, at most {} fit",
                             produced - consumed_, kNicCommands));
  }
  Status outcome;
  for (int i = 0; i < kCommandsOfTurn && consumed_ != produced && outcome.ok(); ++i) {
    const NicCommand command = memory.command(consumed_);
    const auto step = check_command(command, staging_bytes, find);
    outcome = step.ok() ? begin(step.value()) : Status(step.error());
    ++consumed_;
  }
  return outcome;
}

/// Fence between a store and a load of the other side's word, when each side does both. At least
/// one of the two loads sees the other side's store.
inline void fence_with_peer([[maybe_unused]] std::atomic_ref<std::uint32_t> asleep) {
#if defined(__SANITIZE_THREAD__)
  asleep.fetch_add(0, std::memory_order_seq_cst);  // ThreadSanitizer does not support fences
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace oriel::net
