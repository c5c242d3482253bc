// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/error.hpp"

#include "net/process/nic_process_message.hpp"

/// The memory of one stream of copies, which the rank's process and the one that copies share: a
/// page of words, a ring of commands, slots. The rank alone writes `produced` and the commands, the
/// other process all else.
namespace oriel::net {

inline constexpr std::uint32_t kNicCommands = 1024;
inline constexpr std::size_t kNicHeaderBytes = 4096;
inline constexpr std::size_t kNicRingBytes = kNicCommands * sizeof(NicCommand);

struct NicChannelHeader {
  alignas(128) std::uint64_t produced;  ///< commands, from the beginning
  alignas(128) std::uint64_t consumed;
  std::uint32_t asleep;               ///< whether the process has to be woken
  alignas(128) std::uint64_t count;   ///< what the stream was last told, by NicCommand::tell
  alignas(128) std::uint32_t failed;  ///< nothing more is done; written after the two below
  std::int32_t native;
  std::array<char, 480> text;
  alignas(128) std::uint64_t first_word;  ///< the process's own, for a copy that nobody wants
};
static_assert(sizeof(NicChannelHeader) <= kNicHeaderBytes);

inline std::size_t channel_bytes(std::uint32_t slots, std::uint32_t slot_bytes) {
  return kNicHeaderBytes + kNicRingBytes + std::size_t{slots} * slot_bytes;
}

/// A channel's memory as one side has it mapped, of channel_bytes() and aligned to a page.
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

/// The process's end of the ring. The rank may have written anything there, and may go on writing:
/// what is checked and done is a copy.
class NicRingReader {
 public:
  static constexpr int kCommandsOfTurn = 64;

  bool has_commands(const NicChannelMemory& memory) const {
    return memory.produced().load(std::memory_order_acquire) != consumed_;
  }
  /// Has `begin` do what the ring asks for, some of it; give_back() then. After an error the ring
  /// is of no more use.
  template <class Find, class Begin>
  Status take(const NicChannelMemory& memory, std::uint64_t staging_bytes, const Find& find,
              const Begin& begin);
  /// The places of commands that have been taken are the rank's again.
  void give_back(const NicChannelMemory& memory) const {
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
    return Error(ErrorCode::remote, "a software NIC's ring has more commands than it has room for");
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

/// The fence between a store of one's own and a look at a word of the other side's, where each side
/// does both: of two such looks at least one sees the other's store.
inline void fence_with_peer([[maybe_unused]] std::atomic_ref<std::uint32_t> asleep) {
#if defined(__SANITIZE_THREAD__)
  asleep.fetch_add(0, std::memory_order_seq_cst);  // that tool knows no fences
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace oriel::net
