// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "net/copy/atomic_words.hpp"
#include "net/copy/copy_stream.hpp"
#include "net/copy/data_mover.hpp"
#include "net/copy/staging_slots.hpp"
#include "net/copy/stream_progress.hpp"

namespace oriel::net {

/// Moves bytes to, from and within the memory of one GPU by its copy engine, in one stream of its
/// own; no kernel is launched, so that a GPU that is full of kernels which wait for the NIC still
/// moves. Memory of other GPUs that is mapped for this one can be copied from and to as well.
///
/// The stream is the driver's in this process, or that of a process which copies (CopyStream).
/// Bytes between the processor and the GPU go through its slots of pinned memory, several at a
/// time. That something is done the stream itself says, by writing a count into a word of pinned
/// memory behind it, once for each flush(): looking at it takes no call of the driver's and none of
/// its locks.
///
/// Memory order, as a kernel of this GPU (or of another one that has the memory mapped) sees it: a
/// word of 4 or 8 bytes is a write of the stream's (cuStreamBatchMemOp), which comes after the
/// stream's earlier copies and has, unless told otherwise, the fence of __threadfence_system()
/// before it. So a thread that loads the word with acquire order in system scope and sees the new
/// value also sees all bytes that began to move before it: the fence orders the engine's writes
/// before the word's, the acquire orders the thread's later loads behind it, and past the L1 cache.
/// The same holds for the processor and the word that counts.
///
/// Atomic operations read the word by a copy, compute here and write it by the stream. They are
/// atomic among NICs only, as this NIC alone makes them. Where nobody else changes the word
/// (AtomicMove::own_word) its value is kept here, which saves the copy.
///
/// Owns the stream, and what is known of it: its progress, its slots and the words. Members are
/// destroyed from the last to the first, so that the stream ends when nothing refers to it. Staged
/// parts are given back before.
class CudaMover final : public DataMover {
 public:
  struct Options {
    int device = 0;                                   ///< the ordinal
    std::size_t slot_bytes = std::size_t{128} << 10;  ///< of pinned memory
    std::uint32_t slots = 48;
  };
  /// With a stream in this process. The error says what the GPU cannot do, or lacks.
  static Result<std::unique_ptr<CudaMover>> create(const Options& options);
  /// With this stream, of so many slots.
  CudaMover(std::unique_ptr<CopyStream> stream, std::uint32_t slots);
  /// Ends when the stream's work has.
  ~CudaMover() override;
  CudaMover(const CudaMover&) = delete;
  CudaMover& operator=(const CudaMover&) = delete;

  StagedPart load(const std::byte* from, std::size_t count) override;
  bool keep(StagedPart& part) override;
  std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) override;
  bool copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) override;
  bool step_atomic(AtomicMove& move, std::byte* at) override;
  bool is_done(MoveTicket ticket) override;
  bool flush() override;
  Status drain() override;
  void forget(const std::byte* at, std::size_t count) override;
  bool has_failed() const override { return !failure().ok(); }
  bool settle() noexcept override { return stream_->settle(); }
  /// Why.
  const Status& failure() const { return progress_.failure(); }

 private:
  void give_back(StagedPart& part) noexcept override;
  StagedPart stage(const std::byte* from, std::size_t count);
  bool write_word(std::byte* to, std::uint64_t value, std::size_t bytes);
  bool is_moving();

  const std::unique_ptr<CopyStream> stream_;  // destroyed last: the progress refers to it
  StreamProgress progress_;
  StagingSlots slots_;
  AtomicWords words_;
  bool is_stuck_ = false;  // it has been waited for once
};

}  // namespace oriel::net
