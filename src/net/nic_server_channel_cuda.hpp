// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "base/cuda_table.hpp"
#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "base/shared_memory.hpp"
#include "net/nic_process_message.hpp"
#include "net/nic_process_ring.hpp"
#include "net/word_batch_cuda.hpp"

/// What a NicServer has for its rank. All of it by the thread whose current context is the GPU's.
namespace oriel::net {

/// An allocation of the rank's, or of one of its peers', mapped for the GPU. Unmaps when destroyed.
class NicServerRegion {
 public:
  static Result<std::unique_ptr<NicServerRegion>> make(CUdevice device, const nic_request::Add& add,
                                                       const OwnedFd& descriptor);
  ~NicServerRegion();
  NicServerRegion(const NicServerRegion&) = delete;
  NicServerRegion& operator=(const NicServerRegion&) = delete;
  const NicRegion& region() const { return region_; }

 private:
  NicServerRegion() = default;
  Status import(CUdevice device, const nic_request::Add& add, const OwnedFd& descriptor);

  NicRegion region_;  // its address, once reserved
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;
  bool mapped_ = false;
};

/// A stream and its ring. Waits for the stream's work when destroyed.
class NicServerChannel {
 public:
  static Result<std::unique_ptr<NicServerChannel>> make(const nic_request::Open& open,
                                                        const OwnedFd& descriptor);
  ~NicServerChannel();
  NicServerChannel(const NicServerChannel&) = delete;
  NicServerChannel& operator=(const NicServerChannel&) = delete;

  /// Begins what the ring asks for, some of it. `find` yields a region by its number, or null.
  /// Whether there was anything.
  template <class Find>
  bool turn(const Find& find);
  bool has_commands() const {
    return !failed_ && memory_.produced().load(std::memory_order_acquire) != consumed_;
  }
  void set_asleep(bool asleep) {
    memory_.asleep().store(asleep ? 1 : 0, std::memory_order_relaxed);
    if (asleep) fence_with_peer(memory_.asleep());
  }
  /// Whether something is under way of which it has to be seen that it ends; looks at the stream
  /// when that has taken long.
  bool watch(TimePoint now);

 private:
  NicServerChannel() : memory_(nullptr) {}
  Status prepare(const nic_request::Open& open, const OwnedFd& descriptor);
  Status begin(const NicStep& step);
  Status begin_copy(const NicStep& step);
  Status copy_within(const NicStep& step);
  Status store_rows(std::uint64_t to, const std::byte* from, std::size_t width, std::size_t stride);
  void fail(const Error& error);

  SharedMapping mapping_;
  NicChannelMemory memory_;
  std::uint64_t staging_bytes_ = 0;
  bool registered_ = false;
  CUdeviceptr count_address_ = 0;
  CUstream stream_ = nullptr;
  WordBatch words_;              // of one turn
  std::byte* bounce_ = nullptr;  // pinned; made for the first copy within the GPU
  std::uint64_t consumed_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t seen_ = 0;
  TimePoint looked_{};
  bool failed_ = false;
};

inline constexpr int kNicCommandsOfTurn = 64;

template <class Find>
bool NicServerChannel::turn(const Find& find) {
  if (failed_) return false;
  const std::uint64_t produced = memory_.produced().load(std::memory_order_acquire);
  if (produced == consumed_) return false;
  if (produced < consumed_ || produced - consumed_ > kNicCommands) {
    fail(Error(ErrorCode::remote, "a software NIC's ring has more commands than it has room for"));
    return true;
  }
  for (int i = 0; i < kNicCommandsOfTurn && consumed_ != produced && !failed_; ++i) {
    const NicCommand command = memory_.command(consumed_);  // a copy: what is checked is done
    const auto step = check_command(command, staging_bytes_, find);
    Status begun = step.ok() ? begin(step.value()) : Status(step.error());
    if (!begun.ok()) fail(begun.error());
    ++consumed_;
  }
  if (const Status written = words_.submit(stream_); !written.ok() && !failed_) {
    fail(written.error());
  }
  memory_.consumed().store(consumed_, std::memory_order_release);
  return true;
}

}  // namespace oriel::net
