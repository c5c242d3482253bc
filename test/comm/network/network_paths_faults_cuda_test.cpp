// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/support/network_faults.hpp"
#include "comm/support/on_model.hpp"
#include "comm/support/path_players.hpp"
#include "support/cuda/fault_cuda.hpp"

// Has every call of the driver fail, one at a time, of GPU ranks that reach each other by two
// paths (3.14), on the model of the driver.
namespace oriel::test {
namespace {

const bool kHasFabric = skip_without_fabric();

using device::Thread;

constexpr int kRanks = 2;
constexpr std::size_t kEnds = 40;  // words of the board: whose traffic has been given up
constexpr auto kLongest = 10s;     // of a life, on a machine that has much else to do
constexpr long kCallsMost = 5000;
constexpr std::array kStatuses = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                  CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ILLEGAL_ADDRESS,
                                  CUDA_ERROR_OPERATING_SYSTEM};

/// Whose calls fail.
enum class Where { rank, rank_beside_process, its_process };

const char* text_of(Where where) {
  if (where == Where::rank) return "a rank's calls";
  return where == Where::its_process ? "calls of a process that copies" : "a rank's that has one";
}

struct Walk {
  Where where = Where::rank;
  long stride = 1;
  long seed = 0;
};

/// A walk with a stride for ordinary runs. Every call: ORIEL_TEST_STRIDE=1.
Walk make_walk(Where where, long stride) {
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  const Walk walk{where, number_from("ORIEL_TEST_STRIDE", kSanitized ? 3 * stride : stride), seed};
  WARN(text_of(where) << ", ORIEL_TEST_STRIDE=" << walk.stride << " ORIEL_TEST_SEED=" << seed);
  return walk;
}

/// Whose calls are walked: of an ordinary run one of so many, drawn anew each time.
bool is_drawn(Where where, unsigned kinds) {
  static const unsigned drawn = std::random_device{}();
  return std::getenv("ORIEL_TEST_STRIDE") != nullptr ||
         drawn % kinds == static_cast<unsigned>(where);
}

/// A file to which each process that has copied, or met a fault, adds a letter as it ends.
struct Witness {
  Witness() : fd(::memfd_create("witness", 0)) {}
  ~Witness() { ::close(fd); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  std::string path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  }
  std::string text() const {
    std::string letters(1 << 16, '\0');
    const ssize_t count = ::pread(fd, letters.data(), letters.size(), 0);
    letters.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return letters;
  }
  std::size_t hits() const {
    const std::string letters = text();
    return static_cast<std::size_t>(std::count(letters.begin(), letters.end(), 'h'));
  }
  int fd;
};

/// What a rank has of its own in a walk.
struct Stand {
  Players& players;
  const Walk& walk;
  FakeCuda& model;
  const Witness& witness;  // of this rank's processes
  FakeCuda::Held held_of_gpu{};
  std::string complaints{};
  int failures = 0, harmless = 0;

  void complain(int victim, long k, const FaultPlan& plan, const std::string& text) {
    complaints += fmt::format("\nvictim {}, call {} {}: {}", victim, k,
                              plan.hit() ? plan.failed.load() : "", text);
  }
};

bool within(const FakeCuda::Held& now, const FakeCuda::Held& before) {
  return now.handle_references <= before.handle_references &&
         now.reservations <= before.reservations && now.mappings <= before.mappings &&
         now.contexts <= before.contexts && now.buffers <= before.buffers &&
         now.streams <= before.streams && now.events <= before.events &&
         now.physical_bytes <= before.physical_bytes;
}

std::string text_of(const FakeCuda::Held& held) {
  return fmt::format(
      "{} handles, {} reservations, {} mappings, {} contexts, {} buffers, {} streams, {} events, "
      "{} bytes",
      held.handle_references, held.reservations, held.mappings, held.contexts, held.buffers,
      held.streams, held.events, held.physical_bytes);
}

/// Threads of the library give back by and by.
bool settles_at(const FakeCuda& model, const FakeCuda::Held& before) {
  for (int i = 0; i < 2000; ++i) {
    if (within(model.held(), before)) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// The faults of one rank's calls, of some parts of a communicator's life.
class Faults {
 public:
  explicit Faults(FaultPlan* plan, Reach reach) : plan_(plan), reach_(reach) {}
  void arm() {
    if (plan_ != nullptr && !plan_->hit()) faults_.emplace(*plan_, reach_);
  }
  void disarm() { faults_.reset(); }

 private:
  FaultPlan* plan_;
  Reach reach_;
  std::optional<ScopedCudaFaults> faults_;
};

UniqueId next_id(Players& players) {
  const ncclUniqueId bytes = players.next_id();
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
  players.barrier();  // nobody is in an earlier call any more
  return id;
}

/// A put with a signal to the other rank and its arrival here.
void exchange(Players& players, const device::CommView& view, const oriel::Buffer& memory,
              const Window& window, std::uint32_t signal) {
  const int peer = 1 - players.first();
  auto* const bytes = static_cast<std::uint8_t*>(memory.data());
  std::memset(bytes, 0, 1000);
  std::memset(bytes + 2000, 60 + players.first(), 1000);
  players.barrier();
  const device::Thread self;
  require(device::world_put_signal(self, view, peer, window.view(), 0, window.view(), 2000, 1000,
                                   signal, 1)
              .outcome,
          "a put");
  require(device::wait_signal(self, view, signal, 1, peer), "its signal");
  for (int i = 0; i < 1000; ++i) test::require(bytes[i] == 60 + peer, "a byte behind its signal");
  require(device::world_flush(self, view), "the flush");
}

/// The same, with what the communicator has to say if it fails.
void exchange_well(Players& players, const Communicator& comm, const device::CommView& view,
                   const oriel::Buffer& memory, const Window& window, std::uint32_t signal,
                   const FaultPlan* plan) {
  try {
    exchange(players, view, memory, window, signal);
  } catch (const std::runtime_error& failure) {
    const auto error = error_of(comm);
    const bool was_hit = plan != nullptr && plan->hit();
    test::require(
        false,
        fmt::format("{}, call {} {}: {}", failure.what(), plan != nullptr ? plan->fail_at : 0,
                    was_hit ? plan->failed.load() : "", error ? error->to_string() : "no error"));
  }
}

/// A communicator with a network of two paths, kernels' view of it and windows from before and
/// after that, in which calls of the driver fail but for the windows and the traffic.
Seen live_on_paths(Players& players, FaultPlan* plan) {
  Faults faults(plan, Reach::thread);
  const UniqueId id = next_id(players);
  faults.arm();
  auto made = Communicator::init(id, players.first(), players.size());
  faults.disarm();
  if (!made.ok()) return seen_of(made.error());
  Communicator& comm = made.value();
  auto memory = must(comm.allocate(8192));
  auto before = must(comm.register_window(memory));
  players.barrier();
  Seen seen;
  {
    faults.arm();
    auto kernels = comm.device_comm(kWorld);
    if (!kernels.ok()) seen = seen_of(kernels.error());
    if (seen.ok) {
      auto after = comm.register_window(memory);
      if (!after.ok()) seen = seen_of(after.error());
      faults.disarm();
      if (seen.ok) {
        exchange_well(players, comm, kernels->view(), memory, before, 2, plan);
        exchange_well(players, comm, kernels->view(), memory, *after, 3, plan);
        players.barrier();
      }
      faults.arm();
    }
  }
  faults.disarm();
  // What failed on the way has not hurt the communicator.
  if (!seen.ok) {
    auto again = comm.device_comm(kWorld);
    test::require(again.ok(), again.ok() ? "" : "again: " + again.error().to_string());
    exchange_well(players, comm, again->view(), memory, before, 2, plan);
    players.barrier();
  }
  return seen;
}

/// What a rank of two does with its peer, in rounds, until something is given up.
class Doing {
 public:
  Doing(Players& players, Rank& rank, std::uint64_t salt)
      : players_(players),
        rank_(rank),
        later_(must(rank.comm.allocate(8192))),
        peer_(1 - players.first()),
        salt_(salt) {}

  /// Why it ended; nothing if it came to its end.
  std::string run(int flaw) {
    if (!round(rank_.window.view(), rank_.memory)) return why_;
    if (flaw != 0) plant(flaw);
    for (int i = 0; i < 2; ++i) {
      if (!round(rank_.window.view(), rank_.memory)) return why_;
    }
    if (!use_new_window()) return why_;
    if (!round(rank_.window.view(), rank_.memory)) return why_;
    // Nobody leaves before the other one has its last byte.
    device::WorldBarrier<device::Thread> barrier({}, rank_.view(), 0);
    for (int i = 0; i < 2; ++i) {
      if (!is_done(barrier.sync(), "the last barrier")) return why_;
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kSignal = 5;
  static constexpr std::size_t kBytes = 3000, kSource = 4096;

  /// This rank's NIC fails an entry of its next ones, done or not, or loses its answers for long
  /// enough that its peer goes on by the other path.
  void plant(int flaw) {
    if (players_.first() != flaw % 2) return;
    const auto reserved =
        std::atomic_ref(network_of(rank_).view().queues[peer_].indexes->reserved).load();
    network_of(rank_).nic().set_faults(fail_at(reserved + salt_ % 3, flaw > 2));
  }
  bool is_done(device::WorldOutcome outcome, const char* what) {
    if (outcome == device::WorldOutcome::done) return true;
    why_ = fmt::format("{}: {}", what, device::to_string(outcome));
    check_bytes();
    return false;
  }
  /// Where the signal of a put is, its bytes are.
  void check_bytes() const {
    if (target_ == nullptr) return;
    const std::uint64_t seen = device::read_signal(rank_.view(), kSignal);
    test::require(seen <= rounds_, "a signal came twice");
    if (seen < rounds_) return;
    for (std::size_t i = 0; i < kBytes; ++i) {
      test::require(target_[i] == pattern(peer_, salt_ + rounds_, i), "a byte behind its signal");
    }
  }
  bool round(const device::WindowView& window, const oriel::Buffer& memory) {
    ++rounds_;
    target_ = static_cast<const std::uint8_t*>(memory.data());
    auto* const bytes = static_cast<std::uint8_t*>(memory.data());
    for (std::size_t i = 0; i < kBytes; ++i) {
      bytes[kSource + i] = pattern(players_.first(), salt_ + rounds_, i);
    }
    const auto posted = device::world_put_signal(Thread(), rank_.view(), peer_, window, 0, window,
                                                 kSource, kBytes, kSignal, 1);
    if (!is_done(posted.outcome, "a put with a signal")) return false;
    if (!is_done(device::wait_signal(Thread(), rank_.view(), kSignal, rounds_, peer_), "a signal"))
      return false;
    check_bytes();
    target_ = nullptr;
    std::memset(bytes, 0xaa, kBytes);
    if (!is_done(device::world_flush(Thread(), rank_.view()), "the flush")) return false;
    device::WorldBarrier<device::Thread> barrier({}, rank_.view(), 0);
    if (!is_done(barrier.sync(), "the barrier behind all puts")) return false;
    for (std::size_t i = 0; i < kBytes; ++i) {
      test::require(bytes[i] == 0xaa, "a put came twice");
    }
    return is_done(barrier.sync(), "the barrier before the next ones");
  }
  /// Which a call of the driver may fail as well: on all ranks, and nothing else suffers.
  bool use_new_window() {
    auto window = rank_.comm.register_window(later_);
    if (window.ok()) return round(window->view(), later_);
    if (window.error().scope() != Scope::communicator) return true;
    why_ = window.error().to_string();
    return false;
  }

  Players& players_;
  Rank& rank_;
  const oriel::Buffer later_;  // of a window that is registered meanwhile
  const int peer_;
  const std::uint64_t salt_;
  const std::uint8_t* target_ = nullptr;  // of a round
  std::uint64_t rounds_ = 0;
  std::string why_;
};

/// Traffic in which one call of the driver fails, and what came of it.
Seen live_in_traffic(Stand& stand, FaultPlan* plan, long k) {
  Players& players = stand.players;
  const bool in_process = stand.walk.where == Where::its_process;
  Faults faults(in_process ? nullptr : plan, Reach::process);
  const Environment of_process(Variables{
      {"ORIEL_TEST_NIC_FAIL_AT", in_process && plan != nullptr ? std::to_string(k) : ""}});
  auto comm = Communicator::init(next_id(players), players.first(), players.size());
  if (!comm.ok()) return seen_of(comm.error());
  auto memory = must(comm->allocate(8192));
  auto window = comm->register_window(memory);
  if (!window.ok()) return seen_of(window.error());
  auto kernels = comm->device_comm(kWorld);
  if (!kernels.ok()) return seen_of(kernels.error());
  Rank rank(std::move(comm).value(), std::move(memory), std::move(window).value(),
            std::move(kernels).value());
  const auto salt = static_cast<std::uint64_t>(stand.walk.seed + k);
  Doing doing(players, rank, salt);
  players.barrier();
  faults.arm();
  const std::string ended = doing.run(static_cast<int>(salt % 5));
  const auto self = static_cast<std::size_t>(players.first());
  players.word(kEnds + self) = ended.empty() ? 0 : 1;
  players.barrier();
  Seen seen;
  if (players.word(kEnds) != 0 || players.word(kEnds + 1) != 0) {
    const auto error = error_of(rank.comm);
    seen = error ? seen_of(*error) : Seen{false, -1, "no error, though: " + ended};
  }
  players.barrier();
  return seen;
}

/// One step of a walk; a rank's life is done by `live`. Whether its call was reached.
template <class Live>
bool step(Stand& stand, int victim, long k, const Live& live) {
  Players& players = stand.players;
  FaultPlan plan;
  plan.fail_at = k;
  plan.status = kStatuses[static_cast<std::size_t>(k) % kStatuses.size()];
  const bool is_victim = players.first() == victim;
  const std::size_t hits = stand.witness.hits();
  const auto begin = std::chrono::steady_clock::now();
  const Seen seen = live(is_victim ? &plan : nullptr, k);
  const auto took = std::chrono::steady_clock::now() - begin;
  if (is_victim) {
    players.word(kHitIn) = plan.hit() || stand.witness.hits() != hits ? 1 : 0;
  }
  if (!agree(players, seen, victim)) stand.complain(victim, k, plan, seen.text);
  if (took > kLongest) {
    stand.complain(victim, k, plan, fmt::format("took {} ms: {}", took / 1ms, seen.text));
  }
  ++(seen.ok ? stand.harmless : stand.failures);
  if (!settles_at(stand.model, stand.held_of_gpu)) {
    stand.complain(victim, k, plan, "left: " + text_of(stand.model.held()));
  }
  const bool was_hit = players.word(kHitIn) != 0;
  players.barrier();
  return was_hit;
}

/// Every stride-th call of each rank, or of one that is drawn if not every one is walked.
template <class Live>
void walk_over(Stand& stand, const Live& live) {
  Players& players = stand.players;
  const Walk& walk = stand.walk;
  for (int i = 0; i < 2; ++i) {
    const Seen seen = live(nullptr, i);
    require(seen.ok, seen.text);
    players.barrier();
  }
  const Held before = settled();
  stand.held_of_gpu = stand.model.held();
  players.barrier();
  for (int victim = 0; victim < kRanks; ++victim) {
    if (walk.stride > 1 && walk.seed / walk.stride % kRanks != victim) continue;
    int misses = 0;
    for (long k = 1 + walk.seed % walk.stride; misses < 2 && k < kCallsMost; k += walk.stride) {
      misses = step(stand, victim, k, live) ? 0 : misses + (walk.stride > 1 ? 2 : 1);
    }
    Held allowed = before;
    static_cast<void>(settled());
    allowed.fds += forgotten_connections();
    require_held(allowed, fmt::format("after the walk over rank {}", victim));
    players.barrier();
  }
}

/// `live(stand, plan, k)` is one life of a rank, in which the plan's call fails.
template <class Live>
void play_walk(const Walk& walk, const Live& live) {
  const Environment environment(
      Variables{{"ORIEL_BACKEND", "cuda"},
                {"ORIEL_TIMEOUT", "20s"},
                {"ORIEL_NIC_PROCESS", walk.where == Where::rank ? "0" : "1"},
                {"ORIEL_NIC_PROGRAM", ORIEL_TEST_NIC_PROGRAM},
                {"ORIEL_TEST_MODEL_DEVICES", std::to_string(kRanks)}});
  const Nodes nodes{{1, 1}};
  check_all_ok(play(
      Cast::processes, kRanks,
      [&](Players& players) {
        const Witness witness;
        const Environment common(kTwoPaths), own(on_node(nodes, players.first()));
        // In which nothing is taken for silent that only waits for a processor.
        const Environment patience(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "30s"},
                                             {"ORIEL_TEST_NIC_WITNESS", witness.path()}});
        const OnModel on_model(kRanks, players.first());
        const CudaFaultHooks hooks;
        Stand stand{players, walk, on_model.model, witness};
        walk_over(stand, [&](FaultPlan* plan, long k) { return live(stand, plan, k); });
        if (players.first() == 0) {
          std::fprintf(stderr, "%d errors on all ranks, %d without effect\n", stand.failures,
                       stand.harmless);
        }
        require(stand.complaints.empty(), stand.complaints);
        require(witness.text().find('!') == std::string::npos, "a process that copies has failed");
      },
      walk.stride == 1 ? 1500s : 110s));
}

}  // namespace

TEST_CASE("whichever call of the driver fails as GPUs get two paths, all ranks agree",
          "[req:3.14]") {
  const Where where = GENERATE(Where::rank, Where::rank_beside_process);
  if (!is_drawn(where, 2)) return;
  play_walk(make_walk(where, 41), [](Stand& stand, FaultPlan* plan, long /*k*/) {
    return live_on_paths(stand.players, plan);
  });
}

TEST_CASE("whichever call of the driver fails in GPUs' traffic, it is done once or given up",
          "[req:3.14]") {
  const Where where = GENERATE(Where::rank, Where::rank_beside_process, Where::its_process);
  if (!is_drawn(where, 3)) return;
  play_walk(make_walk(where, where == Where::rank ? 131 : 47), live_in_traffic);
}

}  // namespace oriel::test
