// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "net/copy/message_payload.hpp"
#include "net/queue/work_request.hpp"

namespace oriel::net {

class CopyEngine;

/// Place in the order of moves, which take effect in the order in which they start. A ticket is
/// done when all moves up to it are done. 0 is done from the start.
using MoveTicket = std::uint64_t;

/// Part of registered memory, staged where the CPU can read it. Empty, or owned by one engine, to
/// which its slot returns when the part is destroyed. Move-only.
class StagedPart {
 public:
  StagedPart() = default;
  StagedPart(CopyEngine& engine, const std::byte* bytes, std::size_t size, std::uint32_t slot)
      : engine_(&engine), bytes_(bytes), size_(size), slot_(slot) {}
  StagedPart(StagedPart&& other) noexcept { swap(other); }
  StagedPart& operator=(StagedPart&& other) noexcept {
    StagedPart old(std::move(*this));
    swap(other);
    return *this;
  }
  ~StagedPart();

  const std::byte* bytes() const { return bytes_; }
  std::size_t size() const { return size_; }
  std::uint32_t slot() const { return slot_; }
  /// Changes the engine to which the slot returns. Requires a part that is not empty.
  void pass_to(CopyEngine& engine) { engine_ = &engine; }
  MoveTicket ticket = 0;  ///< done when the bytes have arrived
  bool is_kept = false;   ///< see CopyEngine::keep()

 private:
  void swap(StagedPart& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(slot_, other.slot_);
    std::swap(ticket, other.ticket);
    std::swap(is_kept, other.is_kept);
  }
  CopyEngine* engine_ = nullptr;
  const std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint32_t slot_ = 0;
};

/// Atomic operation on registered memory, kept from step to step.
struct AtomicMove {
  AtomicWork work;
  /// True: only this NIC changes the word, so that its value need not be read again each time.
  bool own_word = false;
  // Valid once step_atomic() has returned true:
  std::uint64_t old_value = 0;
  MoveTicket ticket = 0;  ///< done when the new value is in memory

  StagedPart reading;
  std::uint64_t read_at = 0;  ///< time of the engine's own clock
};

/// Moves bytes between one kind of memory and the NIC's own memory, and within that kind. All moves
/// take effect in the order of the calls: bytes first, then the word that signals them. If a move
/// cannot start now for lack of room, the caller tries again later. Only drain() waits. Not
/// thread-safe: the NIC's lock guards it. The caller has checked the addresses.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  /// Starts to read up to `count` bytes. The part's size is how many; 0 if there is no room now.
  virtual StagedPart load(const std::byte* from, std::size_t count) = 0;
  /// Returns whether a part that has arrived may keep its slot until its bytes are sent. If not,
  /// its bytes should be copied soon: kept parts could take the slots of parts for which they wait.
  virtual bool keep(StagedPart& part) = 0;
  /// Starts to write the first bytes of `from` and sets `ticket`. Returns how many bytes; 0 if
  /// there is no room now. `from` may be reused once the call returns. An aligned word of 4 or 8
  /// bytes is written by one store, visible only after everything that started before.
  virtual std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) = 0;
  /// Starts a copy within this kind of memory; a peer's memory may be mapped into this process.
  /// Returns false if it cannot start now. `from` must not change before the ticket is done.
  virtual bool copy(std::byte* to, const std::byte* from, std::size_t count,
                    MoveTicket& ticket) = 0;
  /// Continues an atomic operation on the word at `at`, a multiple of its size. If it returns
  /// false, the caller calls again later and starts nothing else before.
  virtual bool step_atomic(AtomicMove& move, std::byte* at) = 0;

  virtual bool is_done(MoveTicket ticket) = 0;
  /// Requests a completion report of the moves started since the last call. Returns whether any
  /// move is in flight.
  virtual bool flush() = 0;
  /// Waits until all started moves are done, or until the engine has failed and has settled. Waits
  /// for 30 seconds at most. After a timeout, calls do not wait until one of them succeeds. After
  /// an error, moves may still be running.
  virtual Status drain() = 0;
  /// Drops cached values of the words in [at, at + count), because others may change them.
  virtual void forget(const std::byte* at, std::size_t count) = 0;
  /// Returns whether the engine has failed: it starts no more moves, for good.
  virtual bool has_failed() const { return false; }
  /// Once it has failed: returns whether no started move is running any more. Called until true.
  virtual bool settle() noexcept { return true; }

 protected:
  friend class StagedPart;
  virtual void release(StagedPart& part) noexcept = 0;
};

/// Timeout of drain().
inline constexpr std::chrono::seconds kDrainMost{30};
/// Implements CopyEngine::drain(): waits until `is_moving` returns false. `is_stuck` records that
/// an earlier wait timed out; then this one does not wait.
Status wait_until_still(const std::function<bool()>& is_moving, bool& is_stuck,
                        Duration most = kDrainMost);

inline StagedPart::~StagedPart() {
  if (engine_ != nullptr) engine_->release(*this);
}

/// Engine for memory that the CPU can reach: each call is done when it returns. Its atomic
/// operations are also atomic with those of the CPUs.
class HostCopyEngine final : public CopyEngine {
 public:
  StagedPart load(const std::byte* from, std::size_t count) override {
    return {*this, from, count, 0};
  }
  bool keep(StagedPart& /*part*/) override { return true; }
  std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) override;
  bool copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) override;
  bool step_atomic(AtomicMove& move, std::byte* at) override;
  bool is_done(MoveTicket /*ticket*/) override { return true; }
  bool flush() override { return false; }
  Status drain() override { return {}; }
  void forget(const std::byte* /*at*/, std::size_t /*count*/) override {}

 private:
  void release(StagedPart& /*part*/) noexcept override {}
};

/// Bytes of registered memory on their way into a message, part by part.
class Loading {
 public:
  /// `exposes`: sends the bytes from their staged part, if one part has them all and may be kept.
  explicit Loading(std::size_t total = 0, bool exposes = false)
      : total_(total), exposes_(exposes) {}
  /// Takes bytes that have already arrived.
  explicit Loading(Bytes bytes)
      : total_(bytes.size()), started_(bytes.size()), bytes_(std::move(bytes)) {}
  /// Starts to load as much as there is room for. `from` is the present start of the range. Returns
  /// whether all of it has started.
  bool begin(CopyEngine& engine, const std::byte* from);
  /// Takes the parts that have arrived. Returns whether all of them have.
  bool take(CopyEngine& engine);
  /// Returns the bytes once take() has returned true. This object keeps owning them.
  Payload expose() const;
  /// Moves the bytes out once take() has returned true. Requires that `exposes` is false.
  Bytes release() { return std::move(bytes_); }

 private:
  std::size_t total_ = 0;
  bool exposes_ = false;
  std::size_t started_ = 0;
  std::vector<StagedPart> parts_;
  std::size_t taken_ = 0;  // number of parts_ that were taken
  Bytes bytes_;
};

/// Bytes of a message on their way into registered memory, part by part.
class Storing {
 public:
  Storing() = default;
  explicit Storing(Payload bytes) : bytes_(std::move(bytes)) {}
  /// Starts to store as much as there is room for. Returns whether all of it has started; then it
  /// drops its bytes.
  bool begin(CopyEngine& engine, std::byte* to);
  /// Copies borrowed bytes, because the memory may be gone before all of them have started.
  void own() { bytes_.own(); }
  MoveTicket ticket() const { return ticket_; }

 private:
  Payload bytes_;
  std::size_t started_ = 0;
  MoveTicket ticket_ = 0;
};

}  // namespace oriel::net
