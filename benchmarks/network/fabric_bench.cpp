// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oriel/device/queue.hpp"

#include "net/fabric/fabric_endpoint.hpp"
#include "net/fabric/fabric_table.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/soft/driving_memory.hpp"
#include "net/soft/soft_send_queue.hpp"
#include "net/wire/wire_ring.hpp"
#include "support/bench.hpp"

namespace oriel::net {
namespace {

namespace dq = device::queue;
using SteadyTime = std::chrono::steady_clock;

constexpr std::size_t kWrite = std::size_t{1} << 20;
constexpr std::size_t kWindow = 4;
constexpr std::size_t kMemory = 16 * kWrite;
constexpr std::size_t kSignal = kMemory - 8;
constexpr std::uint32_t kTrips = 300;

struct Arguments {
  int rounds = 7;
  std::size_t writes = 512;
  std::string interface = "lo";
  std::string provider = "tcp;ofi_rxm";
  std::uint32_t piece_bytes = 256U << 10;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "fabric_bench: %s\n", what.c_str());
  std::_Exit(1);
}
template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) fail(result.error().to_string());
  return std::move(result).value();
}
void check(long status, const char* what) {
  if (status < 0) fail(std::string(what) + ": " + fabric_library().table.fi_strerror(int(-status)));
}

/// Connection data that a rank sends to the other, in memory that both share.
struct ConnectionData {
  std::array<std::byte, 512> address;
  std::size_t address_bytes;
  std::array<std::byte, 256> raw;
  std::uint32_t queue;
  dq::Region region;
  std::uint64_t raw_key, raw_base;
};
struct SharedState {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> done;
  std::array<ConnectionData, 2> connections;
  std::array<std::uint32_t, 2> ring_queues;
  std::array<dq::Region, 2> ring_regions;
  alignas(64) std::atomic<std::uint64_t> word;
};

constexpr std::size_t kRingBytes = std::size_t{512} << 10;

/// Descriptors of the shared memory of the rings. They were opened before the fork, so both ranks
/// have them.
struct RingFiles {
  std::array<OwnedFd, 2> rings;      // receive rings of rank 0 and rank 1
  std::array<OwnedFd, 2> doorbells;  // wake-up memory of rank 0 and rank 1
};

class Rank {
 public:
  Rank(int rank, SharedState& state, const RingFiles& files, const Arguments& arguments)
      : rank_(rank), state_(state), arguments_(arguments), memory_(kMemory / 8) {
    open_raw();
    open_queue();
    open_ring(files);
    barrier();
    meet();
    barrier();
  }

  /// Measurements. Each returns bytes per second, or seconds, as measured by rank 0.
  double bare_sends();
  double bare_writes();
  double bare_reads();
  double queue_writes();
  double bare_trip();
  template <std::uint64_t kBytes>
  double queue_trip();
  double word_trip();
  double ring_trip();

 private:
  void open_raw();
  void open_queue();
  void open_ring(const RingFiles& files);
  double trip(NicSoft& nic, const SendQueue& queue, const dq::Region& own, const dq::Region& theirs,
              std::uint64_t bytes);
  void meet();
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory_.data()); }
  void drive() {
    if (nic_.progress() || ring_nic_.progress()) return;
    completed_ += poll_raw();
  }
  std::size_t poll_raw() {
    std::array<fi_cq_msg_entry, 8> entries;
    const ssize_t count = ::fi_cq_read(raw_->completions(), entries.data(), entries.size());
    if (count != -FI_EAGAIN) check(count, "fi_cq_read");
    return count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  // Returns after both ranks have entered.
  void barrier() {
    const std::uint32_t goal = 2 * ++barriers_;
    state_.arrived.fetch_add(1);
    while (state_.arrived.load() < goal) {
      if (raw_.has_value()) drive();
      ::sched_yield();
    }
  }
  void post_receive(std::size_t slot, std::size_t bytes_each) {
    check(::fi_recv(raw_->endpoint(), bytes() + slot * bytes_each, bytes_each, descriptor_,
                    FI_ADDR_UNSPEC, &contexts_[kWindow + slot]),
          "fi_recv");
  }
  bool post_send(std::size_t slot, std::size_t count) {
    const ssize_t status = ::fi_send(raw_->endpoint(), bytes() + slot * count, count, descriptor_,
                                     peer_, &contexts_[slot]);
    if (status != -FI_EAGAIN) check(status, "fi_send");
    return status == 0;
  }
  std::uint64_t signal() {
    return std::atomic_ref(memory_[kSignal / 8]).load(std::memory_order_acquire);
  }

  const int rank_;
  SharedState& state_;
  const Arguments& arguments_;
  std::vector<std::uint64_t> memory_;
  std::optional<FabricEndpoint> raw_;
  FabricMemory raw_memory_;
  void* descriptor_ = nullptr;
  fi_addr_t peer_ = 0;
  std::array<fi_context2, 2 * kWindow> contexts_{};
  std::size_t completed_ = 0;
  std::uint32_t barriers_ = 0;

  NicSoft nic_;
  std::array<NicSoft*, 1> nics_ = {&nic_};
  dq::Region region_;
  std::optional<SendQueue> queue_;
  std::unique_ptr<WireFabric> wire_;
  // Uses a separate NIC, because nic_ calls libfabric at each turn.
  NicSoft ring_nic_;
  std::array<NicSoft*, 1> ring_nics_ = {&ring_nic_};
  dq::Region ring_region_;
  std::optional<SendQueue> ring_queue_;
  device::WaitControl control_;
  std::uint64_t signals_ = 0;
  std::uint64_t words_ = 0;
};

void Rank::open_raw() {
  const FabricTable& table = fabric_library().table;
  FabricInfo hints(table, table.fi_dupinfo(nullptr));
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->fabric_attr->prov_name = ::strdup(arguments_.provider.c_str());
  const auto source = value_of(boot::choose_interface({.ifname = arguments_.interface}));
  sockaddr_storage native{};
  hints->src_addrlen = source.to_native(native);
  hints->src_addr = std::malloc(sizeof native);
  std::memcpy(hints->src_addr, &native, sizeof native);
  hints->addr_format = source.family() == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  fi_info* found = nullptr;
  check(table.fi_getinfo(fabric_version(table), nullptr, nullptr, 0, hints.get(), &found),
        "fi_getinfo");
  raw_.emplace(value_of(FabricEndpoint::open(table, FabricInfo(table, found), 64, 4)));
  fid_mr* region = nullptr;
  check(::fi_mr_reg(raw_->domain(), memory_.data(), kMemory,
                    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                    77, 0, &region, nullptr),
        "fi_mr_reg");
  raw_memory_ = FabricMemory(table, region);
  if (raw_->needs_memory()) descriptor_ = ::fi_mr_desc(region);
  ConnectionData& own = state_.connections[static_cast<std::size_t>(rank_)];
  const Bytes name = value_of(raw_->name());
  std::copy(name.begin(), name.end(), own.raw.begin());
  own.raw_key = ::fi_mr_key(region);
  const bool is_virtual = (raw_->info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  own.raw_base = is_virtual ? reinterpret_cast<std::uint64_t>(memory_.data()) : 0;
}

void Rank::open_queue() {
  WireFabric::Options options;
  options.key = boot::Key(std::array<std::byte, boot::Key::kBytes>{});
  options.provider = arguments_.provider;
  options.socket.ifname = arguments_.interface;
  options.payload_bytes_most = arguments_.piece_bytes;
  wire_ = value_of(WireFabric::create(options));
  SendQueue::Options queue;
  queue.piece_bytes = arguments_.piece_bytes;
  queue_.emplace(value_of(SendQueue::create(nic_, queue)));
  region_.address = reinterpret_cast<std::uint64_t>(memory_.data());
  region_.bytes = kMemory;
  region_.keys[0] =
      value_of(nic_.register_memory({region_.address, kMemory, bytes(),
                                     kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic}));
  ConnectionData& own = state_.connections[static_cast<std::size_t>(rank_)];
  const Bytes address = wire_->local_address();
  std::copy(address.begin(), address.end(), own.address.begin());
  own.address_bytes = address.size();
  own.queue = queue_->number();
  own.region = region_;
  control_.timeout_ns = 60'000'000'000;
}

void Rank::open_ring(const RingFiles& files) {
  const auto map = [](const OwnedFd& fd, std::size_t bytes) {
    return value_of(SharedMapping::map(fd, bytes));
  };
  const auto self = static_cast<std::size_t>(rank_), other = static_cast<std::size_t>(1 - rank_);
  const std::size_t bytes = ring_memory_bytes(kRingBytes);
  auto wire = std::make_unique<RingWire>(WireAddress{self + 1});
  wire->add_peer({other + 1}, 1 - rank_, 0, RingWriter(map(files.rings[other], bytes), kRingBytes),
                 RingReader(map(files.rings[self], bytes), kRingBytes),
                 RingDoorbell(map(files.doorbells[other], RingDoorbell::kMemoryBytes)));
  ring_nic_.add_wire(std::move(wire));
  SendQueue::Options queue;
  ring_queue_.emplace(value_of(SendQueue::create(ring_nic_, queue)));
  ring_region_ = region_;
  ring_region_.keys[0] = value_of(
      ring_nic_.register_memory({region_.address, kMemory, this->bytes(),
                                 kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic}));
  state_.ring_queues[self] = ring_queue_->number();
  state_.ring_regions[self] = ring_region_;
}

void Rank::meet() {
  const ConnectionData& other = state_.connections[static_cast<std::size_t>(1 - rank_)];
  peer_ = value_of(raw_->add(ByteView(other.raw).first(value_of(raw_->name()).size())));
  const WireAddress peer = value_of(
      wire_->add_peer(ByteView(other.address).first(other.address_bytes), "the other rank"));
  const std::uint32_t number = nic_.add_wire(std::move(wire_));
  if (!queue_->connect({number, peer, other.queue}).ok()) fail("connecting the queue");
  const auto there = static_cast<std::size_t>(1 - rank_);
  if (!ring_queue_->connect({0, {there + 1}, state_.ring_queues[there]}).ok()) {
    fail("connecting the ring's queue");
  }
}

double seconds_since(SteadyTime::time_point begin) {
  return std::chrono::duration<double>(SteadyTime::now() - begin).count();
}

double Rank::bare_sends() {
  barrier();
  completed_ = 0;
  const std::size_t total = arguments_.writes;
  if (rank_ == 1) {
    for (std::size_t i = 0; i < kWindow; ++i) post_receive(i, kWrite);
  }
  barrier();
  const auto begin = SteadyTime::now();
  std::size_t posted = rank_ == 1 ? kWindow : 0;
  while (completed_ < total) {
    const std::size_t ready = posted - completed_ < kWindow && posted < total ? 1 : 0;
    if (ready != 0 && rank_ == 1) post_receive(posted++ % kWindow, kWrite);
    if (ready != 0 && rank_ == 0 && post_send(posted % kWindow, kWrite)) ++posted;
    completed_ += poll_raw();
  }
  barrier();
  return static_cast<double>(total * kWrite) / seconds_since(begin);
}

double Rank::bare_writes() {
  barrier();
  completed_ = 0;
  const std::uint32_t goal = state_.done.load() + 1;
  barrier();
  const auto begin = SteadyTime::now();
  if (rank_ == 1) {
    while (state_.done.load() < goal) poll_raw();
    barrier();
    return 0;
  }
  const ConnectionData& other = state_.connections[1];
  const std::size_t total = arguments_.writes;
  for (std::size_t posted = 0; completed_ < total;) {
    if (posted < total && posted - completed_ < kWindow) {
      const std::size_t at = posted % kWindow * kWrite;
      iovec local{bytes() + at, kWrite};
      fi_rma_iov remote{other.raw_base + at, kWrite, other.raw_key};
      fi_msg_rma message{};
      message.msg_iov = &local;
      message.desc = &descriptor_;
      message.iov_count = 1;
      message.addr = peer_;
      message.rma_iov = &remote;
      message.rma_iov_count = 1;
      message.context = &contexts_[posted % kWindow];
      const ssize_t status =
          ::fi_writemsg(raw_->endpoint(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
      if (status != -FI_EAGAIN) check(status, "fi_writemsg");
      if (status == 0) ++posted;
    }
    completed_ += poll_raw();
  }
  const double rate = static_cast<double>(total * kWrite) / seconds_since(begin);
  state_.done.fetch_add(1);
  barrier();
  return rate;
}

// Rank 1 reads from rank 0.
double Rank::bare_reads() {
  barrier();
  completed_ = 0;
  const std::uint32_t goal = state_.done.load() + 1;
  barrier();
  const auto begin = SteadyTime::now();
  const std::size_t total = arguments_.writes;
  if (rank_ == 0) {
    while (state_.done.load() < goal) poll_raw();
    const double rate = static_cast<double>(total * kWrite) / seconds_since(begin);
    barrier();
    return rate;
  }
  const ConnectionData& other = state_.connections[0];
  for (std::size_t posted = 0; completed_ < total;) {
    if (posted < total && posted - completed_ < kWindow) {
      const std::size_t at = posted % kWindow * kWrite;
      const ssize_t status =
          ::fi_read(raw_->endpoint(), bytes() + at, kWrite, descriptor_, peer_, other.raw_base + at,
                    other.raw_key, &contexts_[posted % kWindow]);
      if (status != -FI_EAGAIN) check(status, "fi_read");
      if (status == 0) ++posted;
    }
    completed_ += poll_raw();
  }
  state_.done.fetch_add(1);
  barrier();
  return 0;
}

double Rank::queue_writes() {
  barrier();
  const std::uint32_t goal = state_.done.load() + 1;
  barrier();
  const DrivingScope scope(nics_);
  if (rank_ == 1) {
    while (state_.done.load() < goal) nic_.progress();
    barrier();
    return 0;
  }
  const auto begin = SteadyTime::now();
  std::array<std::uint64_t, kWindow> ends{};
  const std::size_t total = arguments_.writes;
  for (std::size_t i = 0; i < total + kWindow; ++i) {
    std::uint64_t& end = ends[i % kWindow];
    if (end != 0 &&
        dq::wait_complete<DrivingMemory>(queue_->view(), end, control_) != dq::QueueOutcome::done) {
      fail("a write failed");
    }
    end = 0;
    if (i >= total) continue;
    const std::size_t at = i % kWindow * kWrite;
    const auto posted = dq::put<device::Thread, DrivingMemory>(
        device::Thread(), queue_->view(), {region_, at, state_.connections[1].region, at, kWrite},
        control_);
    if (posted.outcome != dq::QueueOutcome::done) fail("a write was not posted");
    end = posted.end;
  }
  const double rate = static_cast<double>(total * kWrite) / seconds_since(begin);
  state_.done.fetch_add(1);
  barrier();
  return rate;
}

double Rank::bare_trip() {
  barrier();
  post_receive(0, 8);
  barrier();
  const auto begin = SteadyTime::now();
  for (std::uint32_t i = 0; i < kTrips; ++i) {
    // A receive and a send complete in every trip; the next trip waits for the receive.
    for (int step = 0; step < 2; ++step) {
      if ((step == 0) == (rank_ == 0)) {
        while (!post_send(0, 8)) completed_ += poll_raw();
      } else {
        completed_ = 0;
        std::array<fi_cq_msg_entry, 8> entries;
        for (bool came = false; !came;) {
          const ssize_t count = ::fi_cq_read(raw_->completions(), entries.data(), entries.size());
          if (count != -FI_EAGAIN) check(count, "fi_cq_read");
          for (std::size_t n = 0; count > 0 && n < static_cast<std::size_t>(count); ++n) {
            came = came || (entries[n].flags & FI_RECV) != 0;
          }
        }
        if (i + 1 < kTrips) post_receive(0, 8);
      }
    }
  }
  const double half = seconds_since(begin) / (2.0 * kTrips);
  barrier();
  return half;
}

template <std::uint64_t kBytes>
double Rank::queue_trip() {
  barrier();
  const DrivingScope scope(nics_);
  return trip(nic_, *queue_, region_,
              state_.connections[static_cast<std::size_t>(1 - rank_)].region, kBytes);
}

double Rank::ring_trip() {
  barrier();
  const DrivingScope scope(ring_nics_);
  return trip(ring_nic_, *ring_queue_, ring_region_,
              state_.ring_regions[static_cast<std::size_t>(1 - rank_)], 8);
}

double Rank::word_trip() {
  barrier();
  const auto begin = SteadyTime::now();
  for (std::uint32_t i = 0; i < kTrips; ++i) {
    for (int step = 0; step < 2; ++step) {
      ++words_;
      if ((step == 0) == (rank_ == 0)) {
        state_.word.store(words_, std::memory_order_release);
      } else {
        while (state_.word.load(std::memory_order_acquire) < words_) device::Memory::relax();
      }
    }
  }
  const double half = seconds_since(begin) / (2.0 * kTrips);
  barrier();
  return half;
}

double Rank::trip(NicSoft& nic, const SendQueue& queue, const dq::Region& own,
                  const dq::Region& theirs, std::uint64_t bytes) {
  const auto begin = SteadyTime::now();
  for (std::uint32_t i = 0; i < kTrips; ++i) {
    for (int step = 0; step < 2; ++step) {
      if ((step == 0) == (rank_ == 0)) {
        const auto posted = dq::put_signal<dq::SignalOp::add, device::Thread, DrivingMemory>(
            device::Thread(), queue.view(), {own, 0, theirs, 0, bytes}, theirs, kSignal, 1,
            control_);
        if (posted.outcome != dq::QueueOutcome::done) fail("a signal was not posted");
      } else {
        ++signals_;
        while (signal() < signals_) nic.progress();
      }
    }
  }
  const double half = seconds_since(begin) / (2.0 * kTrips);
  if (dq::wait_all<DrivingMemory>(queue.view(), control_) != dq::QueueOutcome::done) {
    fail("a signal failed");
  }
  barrier();
  return half;
}

void run(int number, SharedState& state, const RingFiles& files, const Arguments& arguments,
         bench::Bench& bench) {
  Rank rank(number, state, files, arguments);
  using Measure = double (Rank::*)();
  struct Case {
    const char* name;
    Measure measure;
    bool is_rate;
    std::vector<double> samples;
  };
  std::array cases = {
      Case{"fi_writemsg of 1 MiB, delivery complete", &Rank::bare_writes, true, {}},
      Case{"fi_send of 1 MiB", &Rank::bare_sends, true, {}},
      Case{"fi_read of 1 MiB", &Rank::bare_reads, true, {}},
      Case{"queue put of 1 MiB", &Rank::queue_writes, true, {}},
      Case{"fi_send of 8 B, half a round trip", &Rank::bare_trip, false, {}},
      Case{"queue put_signal of 8 B, half a round trip", &Rank::queue_trip<8>, false, {}},
      Case{"queue put_signal of 1 KiB, half a round trip", &Rank::queue_trip<1024>, false, {}},
      Case{"queue put_signal of 8 KiB, half a round trip", &Rank::queue_trip<8192>, false, {}},
      Case{"a word in shared memory, half a round trip", &Rank::word_trip, false, {}},
      Case{"queue put_signal of 8 B by a ring, half a round trip", &Rank::ring_trip, false, {}}};
  // The first round is a warm-up and is not reported.
  for (int round = -1; round < arguments.rounds; ++round) {
    for (Case& at : cases) {
      const double sample = (rank.*at.measure)();
      if (round >= 0) at.samples.push_back(sample);
    }
  }
  if (number != 0) return;
  for (Case& at : cases) {
    for (double& sample : at.samples) sample *= at.is_rate ? 1e-9 : 1e6;
    bench.result(at.name,
                 bench::Fields()
                     .add("provider", arguments.provider)
                     .add("interface", arguments.interface)
                     .add("piece_bytes", arguments.piece_bytes),
                 at.is_rate ? "GB/s" : "us", std::move(at.samples));
  }
}

int start(int count, char** words) {
  std::int64_t rounds = 7, writes = 512, piece = 256 << 10;
  Arguments arguments;
  bench::Bench bench(
      "fabric_bench",
      "measures the wire over libfabric between two processes of this machine, in "
      "turns with bare loops over\nan endpoint of the same provider. Bandwidth: writes "
      "of 1 MiB, 4 under way. Latency: half of a round trip\nof 8 bytes, by queue also "
      "of 1 and 8 KiB; then by a ring in shared memory, beside a single word there.\n"
      "Exit status: 0, 77 without libfabric, 1 after a failure, 2 after misuse.");
  bench.flag("--rounds", rounds, 1, 1000, "rounds of all cases");
  bench.flag("--writes", writes, 8, 65536, "writes of 1 MiB in a round");
  bench.flag("--interface", arguments.interface, "network interface");
  bench.flag("--provider", arguments.provider, "provider of libfabric");
  bench.flag("--piece", piece, 1024, 4 << 20, "bytes of a message of a queue at most");
  if (const auto status = bench.parse(count, words)) return *status;
  arguments.rounds = static_cast<int>(rounds);
  arguments.writes = static_cast<std::size_t>(writes);
  arguments.piece_bytes = static_cast<std::uint32_t>(piece);
  if (!fabric_library().missing.empty()) {
    std::printf("skipped: %s\n", fabric_library().missing.c_str());
    return 77;
  }
  void* const memory = ::mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  auto& state = *new (memory) SharedState();
  RingFiles files;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    files.rings[rank] = value_of(make_sealed_memfd(ring_memory_bytes(kRingBytes)));
    files.doorbells[rank] = value_of(make_sealed_memfd(RingDoorbell::kMemoryBytes));
  }
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  run(child == 0 ? 1 : 0, state, files, arguments, bench);
  if (child == 0) std::_Exit(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace oriel::net

int main(int count, char** words) {
  return oriel::net::start(count, words);
}
