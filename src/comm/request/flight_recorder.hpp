// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/device/memory.hpp"

#include "base/deadline.hpp"
#include "comm/request/call_activity.hpp"
#include "comm/request/call_request.hpp"
#include "kernels/plan/call_record.hpp"

namespace oriel::comm {

/// What stands at the top of a rank's file.
struct FlightFacts {
  std::string folder;              ///< ORIEL_DUMP_DIR; empty: no file is written
  std::uint64_t communicator = 0;  ///< Session::number
  std::string name;                ///< chosen by the user; may be empty
  int rank = 0;
  int size = 1;
  bool on_host = true;
};

enum class FlightKind : std::uint8_t { collective = 0, send = 1, receive = 2 };

/// One collective, send or receive.
struct FlightRecord {
  FlightKind kind = FlightKind::collective;
  kernels::CollectiveCall call;  ///< send, receive: type, count, and the peer as `root`
  std::uint64_t number = 0;      ///< from 1: among the collectives, or per peer and direction
  std::uint64_t group = 0;       ///< from 1: number of the call, or of the group of sends
  std::uint64_t stream = 0;
  std::uint64_t enqueued = 0;  ///< in FlightRecorder::ticks()
  std::uint64_t ended = 0;     ///< 0: not known to have ended
};

/// The last calls of one rank, for messages about waits that last and for a file that explains a
/// failure. Noting a call takes two reads of the clock and some stores: no lock, allocation or
/// system call. One thread at a time makes calls; any thread may read and write the file.
class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 1024;

  explicit FlightRecorder(FlightFacts facts);

  /// Notes a call. CPU ranks: before it runs. GPU ranks: once it is enqueued.
  void enter(const kernels::CollectiveCall& call, const void* stream);
  void enter(std::span<const PointToPointRequest> requests);
  /// CPU ranks: the call returns. One that has failed is kept as not ended.
  void leave(bool completed);

  /// CPU ranks: has what the calling thread is in stand at `word`, where other ranks see it. The
  /// word is zero, and outlives the recorder's last call.
  void share_activity(std::uint64_t* word) { activity_ = word; }
  /// CPU ranks: returns what the calling thread is in.
  CallActivity activity() const {
    return activity_of(device::Memory::load<device::Order::relaxed>(activity_));
  }
  /// Returns the last record, if there is one that is not being written.
  std::optional<FlightRecord> last() const;
  /// GPU ranks: returns "number 3, is an all-reduce ..." for the call that was enqueued last; empty
  /// before the first.
  std::string enqueued_text() const;

  /// Returns the records that are left, oldest first. One that is being written is left out.
  std::vector<FlightRecord> records() const;

  /// Returns whether write() has a folder to write to.
  bool is_wanted() const { return !facts_.folder.empty(); }
  /// Replaces this rank's file, which says why it was written. After a file that is `final` comes
  /// no other. A failure is an alert in the log, once.
  void write(std::string_view reason, bool final);

  /// Reads the clock of the records: the processor's counter where there is one.
  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return device::Memory::clock_ns();
#endif
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  /// A record as words, one cache line.
  struct alignas(64) Slot {
    Word version{0};  // twice the record's position + 1 while it is written, one more behind that
    Word what{0};     // root or peer << 32, then FlightKind, collective, type, operation
    Word count{0}, number{0}, group{0}, stream{0}, enqueued{0}, ended{0};
  };
  void begin(const CallActivity& activity) {
    device::Memory::store<device::Order::relaxed>(activity_, word_of(activity));
  }
  /// Notes one call of the present group.
  void note(FlightKind kind, const kernels::CollectiveCall& call, std::uint64_t number,
            const void* stream, std::uint64_t now);
  std::optional<FlightRecord> read(std::uint64_t position) const;
  std::string file_name() const;
  std::string file_text(std::string_view reason) const;

  const FlightFacts facts_;
  const TimePoint started_;
  const std::uint64_t started_ticks_;
  const std::unique_ptr<Slot[]> slots_;
  std::vector<std::uint64_t> messages_;  // sends to each rank, then receives from each
  std::uint64_t collectives_ = 0;
  std::uint64_t groups_ = 0;
  std::uint64_t entered_ = 0;  // position of the first record of the last call
  Word next_{0};               // position of the next record
  std::uint64_t own_activity_ = 0;
  std::uint64_t* activity_ = &own_activity_;  // or the word that is shared

  std::mutex file_mutex_;  // guards all below, and orders the writers of the file
  bool is_final_ = false;
  bool is_refused_ = false;  // the user has been told
};

}  // namespace oriel::comm
