// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "net/copy/atomic_words.hpp"
#include "net/copy/copy_engine.hpp"
#include "net/copy/copy_stream.hpp"
#include "net/copy/staging_slots.hpp"
#include "net/copy/stream_progress.hpp"

namespace oriel::net {

/// Moves bytes to, from and within the memory of one GPU by its copy engine, in a stream of its
/// own. No kernel is launched. So it works even if the GPU is full of kernels that wait for the
/// NIC. Memory of other GPUs that is mapped for this GPU can be copied from and to as well.
///
/// The stream runs in this process's driver, or in a separate copy process (CopyStream). Bytes
/// between CPU and GPU go through its slots of pinned memory, several at a time. To report
/// completion, the stream writes a count into a word of pinned memory after the work, once for each
/// flush(). Polling that word needs no call of the driver and none of its locks.
///
/// Memory order for kernels of this GPU, and of other GPUs that have the memory mapped. A word of 4
/// or 8 bytes is a write of the stream (cuStreamBatchMemOp). It comes after the stream's earlier
/// copies. By default a fence like __threadfence_system() precedes it. So a thread that loads the
/// new value with acquire order in system scope also sees all bytes that started to move before.
/// The fence orders the engine's writes before the word's. The acquire orders the thread's later
/// loads after the load, past the L1 cache. All this also holds for the CPU and the word with the
/// count.
///
/// Atomic operations read the word by a copy, compute here and write it by the stream. They are
/// atomic among NICs only, because only this NIC executes them. If nobody else changes the word
/// (AtomicMove::own_word), its value is cached here, which saves the copy.
///
/// Owns the stream and its state: progress, slots and words. Members are destroyed in reverse
/// order, so that the stream ends when nothing refers to it. Staged parts must be destroyed before.
class CudaCopyEngine final : public CopyEngine {
 public:
  struct Options {
    int device = 0;                                   ///< device ordinal
    std::size_t slot_bytes = std::size_t{128} << 10;  ///< bytes of pinned memory per slot
    std::uint32_t slots = 48;
  };
  /// Creates an engine with a stream in this process. The error says what the GPU cannot do, or
  /// lacks.
  static Result<std::unique_ptr<CudaCopyEngine>> create(const Options& options);
  /// Takes a stream that has `slots` slots.
  CudaCopyEngine(std::unique_ptr<CopyStream> stream, std::uint32_t slots);
  /// Waits as the stream's destructor does.
  ~CudaCopyEngine() override;
  CudaCopyEngine(const CudaCopyEngine&) = delete;
  CudaCopyEngine& operator=(const CudaCopyEngine&) = delete;

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
  /// Returns why the engine has failed.
  const Status& failure() const { return progress_.failure(); }

 private:
  void release(StagedPart& part) noexcept override;
  StagedPart stage(const std::byte* from, std::size_t count);
  bool write_word(std::byte* to, std::uint64_t value, std::size_t bytes);
  bool is_moving();

  const std::unique_ptr<CopyStream> stream_;  // destroyed last: the progress refers to it
  StreamProgress progress_;
  StagingSlots slots_;
  AtomicWords words_;
  bool is_stuck_ = false;  // an earlier drain() timed out
};

}  // namespace oriel::net
