// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "oriel/error.hpp"

#include "base/cuda_table.hpp"
#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "base/shared_memory.hpp"
#include "net/copy/word_batch_cuda.hpp"
#include "net/process/nic_process_message.hpp"
#include "net/process/nic_process_ring.hpp"

/// Objects that a NicServer keeps for its rank. Only the thread whose current context is the GPU's
/// uses them.
namespace oriel::net {

/// An allocation of the rank or of one of its peers, mapped for the GPU. The destructor unmaps it.
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

  NicRegion region_;  // address set once it is reserved
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;
  bool mapped_ = false;
};

/// A stream and its ring. The destructor waits for the stream's work.
class NicServerChannel {
 public:
  static Result<std::unique_ptr<NicServerChannel>> make(const nic_request::Open& open,
                                                        const OwnedFd& descriptor);
  ~NicServerChannel();
  NicServerChannel(const NicServerChannel&) = delete;
  NicServerChannel& operator=(const NicServerChannel&) = delete;

  /// Starts some of the commands in the ring. `find` returns the region of a number, or null.
  /// Returns whether there were any commands.
  template <class Find>
  bool turn(const Find& find);
  bool has_commands() const { return !failed_ && ring_.has_commands(memory_); }
  void set_asleep(bool asleep) {
    memory_.asleep().store(asleep ? 1 : 0, std::memory_order_relaxed);
    if (asleep) fence_with_peer(memory_.asleep());
  }
  /// Returns whether work is in flight whose end must be noticed. Queries the stream if there was
  /// no progress for a while.
  bool watch(TimePoint now);

 private:
  NicServerChannel() : memory_(nullptr) {}
  Status prepare(const nic_request::Open& open, const OwnedFd& descriptor);
  Status begin(const NicStep& step);
  Status begin_with_copy(std::uint64_t at);
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
  bool started_ = false;         // the stream has had a copy or a word of a region
  WordBatch words_;              // words of the current turn
  std::byte* bounce_ = nullptr;  // pinned; allocated for the first copy within the GPU
  NicRingReader ring_;
  std::uint64_t signalled_ = 0;
  std::uint64_t seen_ = 0;
  TimePoint polled_{};
  bool failed_ = false;
};

template <class Find>
bool NicServerChannel::turn(const Find& find) {
  if (!has_commands()) return false;
  Status started = ring_.take(memory_, staging_bytes_, find,
                              [this](const NicStep& step) { return begin(step); });
  Status written = words_.submit(stream_);
  if (started.ok()) started = std::move(written);
  if (!started.ok()) fail(started.error());
  ring_.release(memory_);
  return true;
}

}  // namespace oriel::net
