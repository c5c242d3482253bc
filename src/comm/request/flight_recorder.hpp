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

/// Header of a rank's flight file.
struct FlightFacts {
  std::string folder;              ///< ORIEL_DUMP_DIR; empty: no file is written
  std::uint64_t communicator = 0;  ///< Session::number of the communicator
  std::string name;                ///< name chosen by the user; may be empty
  int rank = 0;
  int size = 1;
  bool on_host = true;
};

enum class FlightKind : std::uint8_t { collective = 0, send = 1, receive = 2 };

/// One collective, send or receive.
struct FlightRecord {
  FlightKind kind = FlightKind::collective;
  kernels::CollectiveCall call;  ///< for a send or receive: type, count, and the peer as `root`
  std::uint64_t number = 0;      ///< from 1: counts collectives, or messages per peer and direction
  std::uint64_t group = 0;       ///< from 1: counts calls; a group is one call
  std::uint64_t stream = 0;
  std::uint64_t enqueued = 0;  ///< time in FlightRecorder::ticks(); 0 if no file is wanted
  /// CPU ranks: time of the return, or 1 if no file is wanted; 0 before it, and after a failure.
  std::uint64_t ended = 0;
  std::uint64_t mark = 0;  ///< GPU ranks: Executor::last_mark() after the call
};

/// Records the last calls of one rank, for messages about long waits and for a file that explains a
/// failure. Recording a call takes some stores: no lock, allocation or system call. If a file is
/// wanted, it also takes at most two reads of the clock, of 13 ns each. One thread at a time makes
/// calls; any thread may read the records and write the file.
class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 1024;

  explicit FlightRecorder(FlightFacts facts);

  /// Records a call. CPU ranks: before it runs. GPU ranks: after it is enqueued, with its mark.
  void enter(const kernels::CollectiveCall& call, const void* stream, std::uint64_t mark = 0);
  void enter(std::span<const PointToPointRequest> requests, std::uint64_t mark = 0);
  /// Records that the call returns (CPU ranks). If the call failed, it stays marked as not ended.
  void leave(bool completed);
  /// Stores how many marked calls are known to have ended (GPU ranks). Any thread.
  void note_ended(std::uint64_t marks) { ended_marks_.store(marks, std::memory_order_relaxed); }

  /// Stores the thread's activity at `word`, where other ranks read it (CPU ranks). The word is
  /// zero, and outlives the recorder's last call.
  void share_activity(std::uint64_t* word) { activity_ = word; }
  /// Returns the activity of the thread that makes calls (CPU ranks) or the last enqueued call (GPU
  /// ranks). Any thread may call it.
  CallActivity activity() const {
    return activity_of(device::Memory::load<device::Order::relaxed>(activity_));
  }
  /// Returns the last record; empty if there is none or it is being written.
  std::optional<FlightRecord> last() const;
  /// Returns "number 3, is an all-reduce ..." for the last enqueued call (GPU ranks); empty before
  /// the first.
  std::string enqueued_text() const;

  /// Returns the available records, oldest first. Skips records that are being written.
  std::vector<FlightRecord> records() const;

  /// Returns whether write() has a folder to write to.
  bool is_wanted() const { return !facts_.folder.empty(); }
  /// Replaces this rank's file; the file contains `reason`. After a `final` file no other is
  /// written. Logs an alert at the first failure.
  void write(std::string_view reason, bool final);

  /// Reads the clock of the records: the processor's counter on x86-64, otherwise nanoseconds.
  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return device::Memory::clock_ns();
#endif
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  /// One record as words, in one cache line.
  struct alignas(64) Slot {
    Word version{0};  // 2 * position + 1 during the write, 2 * position + 2 after it
    Word what{0};     // root or peer << 32, then FlightKind, collective, type, operation
    Word count{0}, number{0}, group{0}, stream{0}, enqueued{0};
    Word end{0};  // CPU ranks: FlightRecord::ended; GPU ranks: its mark
  };
  /// Returns the time for a record, which only the file shows; `otherwise` if no file is wanted.
  std::uint64_t time_or(std::uint64_t otherwise) const {
    return is_wanted() ? ticks() : otherwise;
  }
  void begin(const CallActivity& activity) {
    device::Memory::store<device::Order::relaxed>(activity_, word_of(activity));
  }
  /// Records one call of the current group.
  void note(FlightKind kind, const kernels::CollectiveCall& call, std::uint64_t number,
            const void* stream, std::uint64_t now, std::uint64_t mark);
  std::optional<FlightRecord> read(std::uint64_t position) const;
  std::string file_name() const;
  std::string file_text(std::string_view reason) const;

  const FlightFacts facts_;
  const TimePoint started_;
  const std::uint64_t started_ticks_;
  const std::unique_ptr<Slot[]> slots_;
  std::vector<std::uint64_t> messages_;  // counts of sends to each rank, then of receives from each
  std::uint64_t collectives_ = 0;
  std::uint64_t groups_ = 0;
  std::uint64_t entered_ = 0;  // position of the first record of the last call
  Word next_{0};               // position of the next record
  Word ended_marks_{0};
  std::uint64_t own_activity_ = 0;
  std::uint64_t* activity_ = &own_activity_;  // or the shared word

  std::mutex file_mutex_;  // guards the members below, and orders writers of the file
  bool is_final_ = false;
  bool is_refused_ = false;  // the failure has been logged
};

}  // namespace oriel::comm
