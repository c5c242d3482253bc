// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <type_traits>

#include <unistd.h>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/wait.hpp"

#include "base/process_memory.hpp"
#include "kernels/algorithms/exchange_streams.hpp"
#include "kernels/host/data_ops_host.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::kernels {
namespace {

/// Moves bytes with the vectorised loops of one CPU thread.
class HostExchangeOps {
 public:
  static constexpr bool kReads = true;

  explicit HostExchangeOps(const ExchangeArguments& arguments)
      : arguments_(arguments),
        processes_(arguments.processes),
        copy_(host::find_copy_loop(isa_in_use())) {
    for (std::int32_t i = 0; i < arguments.messages; ++i) {
      passes_caches_ = passes_caches_ || arguments.message[i].bytes >= host::kStreamingBytes;
    }
  }

  void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) const {
    copy_(slot, from, bytes, false);
  }
  void place(std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    copy_(to, from, bytes, passes_caches_);
  }

  /// Returns whether to read a message of team member `index` from its memory (rendezvous read).
  bool can_read(std::int32_t index, std::uint64_t message_bytes) const {
    if (processes_ == nullptr) return false;
    PeerProcess& process = processes_[index];
    if (process.reach == PeerProcess::Reach::own_process) return true;
    return is_timed(index, message_bytes) && process.way.reads_next();
  }
  /// Returns whether the time of such a message is to be reported to note().
  bool is_timed(std::int32_t index, std::uint64_t message_bytes) const {
    return processes_ != nullptr && message_bytes >= kLeastForeignBytes &&
           processes_[index].reach == PeerProcess::Reach::other_process;
  }
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  void note(std::int32_t index, bool was_read, std::uint64_t started_ns,
            std::uint64_t bytes) const {
    processes_[index].way.note(was_read, now_ns() - started_ns, bytes);
  }
  /// Copies from memory of team member `index` (rendezvous read). Returns false if the memory
  /// cannot be read or the permission has been revoked.
  bool read(std::int32_t index, std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    const PeerProcess& process = processes_[index];
    ReadPermission& permission = permission_of(index);
    const std::atomic_ref is_revoked(permission.is_revoked);
    if (process.reach == PeerProcess::Reach::other_process) {
      if (!read_process_memory(process.pid, to, from, bytes)) return false;
      device::arch::fence_seq_cst();  // ThreadSanitizer rejects std::atomic_thread_fence
      return is_revoked.load(std::memory_order_relaxed) == 0;
    }
    const std::atomic_ref readers(permission.readers);
    readers.fetch_add(1, std::memory_order_seq_cst);
    const bool may_read = is_revoked.load(std::memory_order_seq_cst) == 0;
    if (may_read) place(to, from, bytes);
    readers.fetch_sub(1, std::memory_order_release);
    return may_read;
  }
  /// Returns whether team member `index` will be able to read a message at `data`. The Linux kernel
  /// reads neither device memory nor secret memory for another process. So the test reads a byte of
  /// this process in the same way.
  bool can_expose(std::int32_t index, const std::byte* data) const {
    if (processes_[index].reach == PeerProcess::Reach::own_process) return true;
    std::byte first{};
    return read_process_memory(::getpid(), &first, data, 1);
  }
  /// Revokes the permission to read this rank's memory, and waits for readers in this process.
  /// There is no deadline, because the user may free the memory once this returns. Each thread that
  /// still reads copies at most 1 MiB.
  void revoke_reads() const {
    ReadPermission& permission = permission_of(arguments_.rank);
    std::atomic_ref(permission.is_revoked).store(1, std::memory_order_seq_cst);
    while (std::atomic_ref(permission.readers).load(std::memory_order_seq_cst) != 0) {
      std::this_thread::yield();
    }
  }

 private:
  /// Smallest message for a read of another process: below it, the system call takes longer than a
  /// second copy.
  static constexpr std::uint64_t kLeastForeignBytes = 64 << 10;

  ReadPermission& permission_of(std::int32_t index) const {
    return *reinterpret_cast<ReadPermission*>(
        ChannelPlaces(arguments_).at(index, ScratchLayout::read_permission));
  }

  const ExchangeArguments& arguments_;
  PeerProcess* processes_;
  host::CopyLoop copy_;
  bool passes_caches_ = false;  // set if a message is too large to stay in the caches
};

/// A list with inline storage for `kMost` streams, so that a call allocates nothing.
template <class Stream, int kMost>
class StreamList {
 public:
  StreamList() = default;
  StreamList(const StreamList&) = delete;
  StreamList& operator=(const StreamList&) = delete;

  template <class... Arguments>
  void add(Arguments&&... arguments) {
    auto* const stream = new (at(size_)) Stream(std::forward<Arguments>(arguments)...);
    if (!stream->done()) ++size_;
  }
  Stream* begin() { return at(0); }
  Stream* end() { return at(size_); }

 private:
  Stream* at(int index) { return reinterpret_cast<Stream*>(memory_) + index; }
  static_assert(std::is_trivially_destructible_v<Stream>);
  alignas(Stream) std::byte memory_[kMost * sizeof(Stream)];
  int size_ = 0;
};

/// All streams of one launch, moved by one thread.
template <ExchangeForm kForm>
class HostExchange {
  static constexpr bool kFar = kForm == ExchangeForm::any;
  using M = std::conditional_t<kFar, device::WorldMemory, device::Memory>;

 public:
  explicit HostExchange(const ExchangeArguments& arguments)
      : arguments_(arguments), ops_(arguments) {
    for (std::int32_t run = 0; run < arguments.send_runs; ++run) {
      sends_.add(arguments, ops_, run, 0);
    }
    for (std::int32_t run = arguments.send_runs; run < arguments.runs; ++run) {
      receives_.add(arguments, ops_, run, 0);
    }
  }

  bool run() {
    if (move_all()) return true;
    for (auto& stream : sends_) {
      if (!stream.is_exposed()) continue;
      ops_.revoke_reads();
      break;
    }
    return false;
  }

 private:
  bool move_all() {
    for (std::int32_t i = 0; i < arguments_.copies; ++i) {
      const LocalCopy& copy = arguments_.copy[i];
      ops_.place(copy.to, copy.from, copy.bytes);
    }
    for (;;) {
      Round round;
      move_each(sends_, round);
      move_each(receives_, round);
      if (round.failed) return false;
      if (kFar && round.moved) M::relax();  // drives the NIC, which sends the posted WQEs
      if (!round.open) break;
      if (!round.moved && !wait(round.waits_for)) return false;
    }
    for (auto& stream : sends_) stream.finish();
    for (auto& stream : receives_) stream.finish();
    return true;
  }

  /// Result of one pass over all streams.
  struct Round {
    bool moved = false;
    bool open = false;
    bool failed = false;
    std::int32_t waits_for = -1;
  };

  /// Makes one step of each stream that can move, so that no peer takes all of this thread's time.
  template <class Streams>
  static void move_each(Streams& streams, Round& round) {
    for (auto& stream : streams) {
      if (round.failed || stream.done()) continue;
      if (stream.is_ready()) {
        round.moved = true;
        round.failed = !stream.step();
        round.open = round.open || !stream.done();
      } else {
        round.open = true;
        if (round.waits_for < 0) round.waits_for = stream.peer();
      }
    }
  }
  template <class Streams>
  static bool any_ready(Streams& streams) {
    for (auto& stream : streams) {
      if (!stream.done() && stream.is_ready()) return true;
    }
    return false;
  }
  /// Waits until a stream can move. The stall record names `rank`.
  bool wait(std::int32_t rank) {
    const auto ready = [&] { return any_ready(receives_) || any_ready(sends_); };
    return device::wait_until<M>(ready, arguments_.wait, {rank, 0}) == device::WaitOutcome::ready;
  }

  const ExchangeArguments& arguments_;
  HostExchangeOps ops_;
  StreamList<SendStream<device::Thread, HostExchangeOps, M, kForm>, kMostMessages> sends_;
  StreamList<ReceiveStream<device::Thread, HostExchangeOps, M, kForm>, kMostMessages> receives_;
};

}  // namespace

bool run_exchange_on_host(const ExchangeArguments& arguments) {
  if (arguments.network != nullptr) {
    // Used even if all peers are of this team: a waiting rank must drive its own queues.
    const device::detail::Driving driving(arguments.network);
    return HostExchange<ExchangeForm::any>(arguments).run();
  }
  if (arguments.form == ExchangeForm::packets) {
    return HostExchange<ExchangeForm::packets>(arguments).run();
  }
  return HostExchange<ExchangeForm::near>(arguments).run();
}

}  // namespace oriel::kernels
