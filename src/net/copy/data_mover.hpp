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

class DataMover;

/// What begins is done in the order in which it began; a ticket is done when everything up to it
/// is. 0 is done from the start.
using MoveTicket = std::uint64_t;

/// A part of registered memory on its way to where the processor can read it. Empty, or of one
/// mover, to which it goes back when destroyed. Move-only.
class StagedPart {
 public:
  StagedPart() = default;
  StagedPart(DataMover& mover, const std::byte* bytes, std::size_t size, std::uint32_t slot)
      : mover_(&mover), bytes_(bytes), size_(size), slot_(slot) {}
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
  /// To whom it goes back from now on, of one that is not empty.
  void pass_to(DataMover& mover) { mover_ = &mover; }
  MoveTicket ticket = 0;  ///< when the bytes are there
  bool is_kept = false;   ///< see DataMover::keep()

 private:
  void swap(StagedPart& other) noexcept {
    std::swap(mover_, other.mover_);
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(slot_, other.slot_);
    std::swap(ticket, other.ticket);
    std::swap(is_kept, other.is_kept);
  }
  DataMover* mover_ = nullptr;
  const std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint32_t slot_ = 0;
};

/// An atomic operation on registered memory, from step to step.
struct AtomicMove {
  AtomicWork work;
  /// Only this NIC changes the word, so that its value need not be read again each time.
  bool own_word = false;
  // Once step_atomic() was true:
  std::uint64_t old_value = 0;
  MoveTicket ticket = 0;  ///< when the new value is there

  StagedPart reading;
  std::uint64_t read_at = 0;  ///< by the mover's own clock
};

/// Moves bytes between memory of one kind and the NIC's own, and within memory of that kind. All
/// of it takes effect in the order of the calls: bytes first, then the word that tells of them.
/// What cannot begin now, for want of room, is tried again later. Nothing waits but drain().
/// Not thread-safe: the NIC's lock guards it. Addresses have been checked by the caller.
class DataMover {
 public:
  virtual ~DataMover() = default;

  /// Begins to read up to `count` bytes; how many they are is the part's size, 0 if there is no
  /// room now.
  virtual StagedPart load(const std::byte* from, std::size_t count) = 0;
  /// Whether a part that has arrived may stay for as long as its bytes wait to be sent. Otherwise
  /// they are to be copied soon, for parts that are kept could take the room of those for which
  /// they wait.
  virtual bool keep(StagedPart& part) = 0;
  /// Begins to write the first bytes of `from`, which may go once the call returns, and moves
  /// `ticket`; how many, 0 if there is no room now. A word of 4 or 8 bytes at a multiple of its
  /// size is written at once, and seen only after everything that began before.
  virtual std::size_t store(std::byte* to, ByteView from, MoveTicket& ticket) = 0;
  /// Begins to copy within memory of this kind; a peer's may be mapped into this process. False if
  /// it cannot begin now. `from` must not change before the ticket is done.
  virtual bool copy(std::byte* to, const std::byte* from, std::size_t count,
                    MoveTicket& ticket) = 0;
  /// Goes on with an operation on the word at `at`, a multiple of its size. False: again later, and
  /// nothing else begins before.
  virtual bool step_atomic(AtomicMove& move, std::byte* at) = 0;

  virtual bool is_done(MoveTicket ticket) = 0;
  /// Has what began since the last call be told of when it is done. Whether anything is under way.
  virtual bool flush() = 0;
  /// Waits until everything that began is done, or the mover has failed and has settled; 30 seconds
  /// at most, and not again by calls that follow. An error: it may still be moving.
  virtual Status drain() = 0;
  /// Forgets what it knows of the words in [at, at + count): somebody else may change them.
  virtual void forget(const std::byte* at, std::size_t count) = 0;
  /// Nothing begins to move any more, for good.
  virtual bool has_failed() const { return false; }
  /// Once it has failed: whether nothing of what began before is moving any more. Asked until then.
  virtual bool settle() noexcept { return true; }

 protected:
  friend class StagedPart;
  virtual void give_back(StagedPart& part) noexcept = 0;
};

/// For how long a drain() waits.
inline constexpr std::chrono::seconds kDrainMost{30};
/// Implements DataMover::drain(): waits until nothing is moving. `is_stuck` says whether a wait
/// before was in vain.
Status wait_until_still(const std::function<bool()>& is_moving, bool& is_stuck,
                        Duration most = kDrainMost);

inline StagedPart::~StagedPart() {
  if (mover_ != nullptr) mover_->give_back(*this);
}

/// For memory that the processor itself can reach: each call is done when it returns. Atomic
/// operations are also atomic with the processors' own, for now.
class HostMover final : public DataMover {
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
  void give_back(StagedPart& /*part*/) noexcept override {}
};

/// Bytes of registered memory on their way into a message, part by part.
class Loading {
 public:
  /// `lends`: they are sent from the part that has them, if one has them all and may be kept.
  explicit Loading(std::size_t total = 0, bool lends = false) : total_(total), lends_(lends) {}
  /// Of bytes that have arrived.
  explicit Loading(Bytes bytes)
      : total_(bytes.size()), begun_(bytes.size()), bytes_(std::move(bytes)) {}
  /// Begins as much as there is room for; `from` is where the range begins now. Whether all of it
  /// has begun.
  bool begin(DataMover& mover, const std::byte* from);
  /// Takes what has arrived. Whether that was all.
  bool take(DataMover& mover);
  /// Once that was all. The bytes stay here.
  Payload lend() const;
  /// The same, for one that does not lend.
  Bytes release() { return std::move(bytes_); }

 private:
  std::size_t total_ = 0;
  bool lends_ = false;
  std::size_t begun_ = 0;
  std::vector<StagedPart> parts_;
  std::size_t taken_ = 0;  // of parts_
  Bytes bytes_;
};

/// Bytes of a message on their way into registered memory, part by part.
class Storing {
 public:
  Storing() = default;
  explicit Storing(Payload bytes) : bytes_(std::move(bytes)) {}
  /// As Loading::begin; the bytes may go then.
  bool begin(DataMover& mover, std::byte* to);
  /// What has not begun does so later, when what it borrows may be gone.
  void own() { bytes_.own(); }
  MoveTicket ticket() const { return ticket_; }

 private:
  Payload bytes_;
  std::size_t begun_ = 0;
  MoveTicket ticket_ = 0;
};

}  // namespace oriel::net
