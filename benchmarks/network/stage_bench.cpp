// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "net/wire/wire_format.hpp"
#include "net/wire/wire_ring.hpp"
#include "support/bench.hpp"

#if defined(ORIEL_STAGES_OF_GPUS)
#include <cuda_runtime.h>
#endif

// Measures all stages with CUDA and one GPU per rank, otherwise only the ring.
namespace oriel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRingBytes = std::size_t{512} << 10;  // the size that networks use
constexpr int kRounds = 9;

struct Plan {
  int ranks = 0;
  std::size_t bytes = 0;
  std::size_t piece = 0;
  bench::Bench* bench = nullptr;
};

/// One rank's part of one round; returns false on failure.
using Part = std::function<bool(int rank)>;

/// Returns the median over the rounds of the slowest rank's seconds; nothing if a part has failed.
std::optional<double> measure(const Plan& plan, const Part& part) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  std::vector<std::vector<double>> seconds(kRounds, std::vector<double>(ranks));
  std::barrier<> begin(plan.ranks);
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      for (auto& round : seconds) {
        begin.arrive_and_wait();
        const auto start = Clock::now();
        if (!failed && !part(static_cast<int>(rank))) failed = true;
        round[rank] = std::chrono::duration<double>(Clock::now() - start).count();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) return std::nullopt;
  std::vector<double> slowest;
  for (const auto& round : seconds)
    slowest.push_back(*std::max_element(round.begin(), round.end()));
  std::nth_element(slowest.begin(), slowest.begin() + kRounds / 2, slowest.end());
  return slowest[kRounds / 2];
}

bool report(const Plan& plan, const char* stage, std::optional<double> seconds) {
  if (!seconds) {
    std::fprintf(stderr, "%s: failed\n", stage);
    return false;
  }
  const double bytes = static_cast<double>(plan.bytes);
  plan.bench->result(
      stage,
      bench::Fields().add("ranks", plan.ranks).add("bytes", plan.bytes).add("piece", plan.piece),
      "s", *seconds, bench::Fields().add("gb_per_s", bytes / *seconds / 1e9));
  return true;
}

/// Ring wires that connect rank i of the first half with rank i of the second half.
class Wires {
 public:
  static std::optional<Wires> make(int ranks) {
    Wires made;
    for (int rank = 0; rank < ranks; ++rank) {
      made.ends_.push_back(std::make_unique<net::RingWire>(address_of(rank)));
    }
    for (int rank = 0; rank < ranks / 2; ++rank) {
      if (!made.join(rank, rank + ranks / 2)) return std::nullopt;
    }
    return made;
  }

  /// Sends `from` and receives the same number of bytes into `to`, with one thread, as a NIC does.
  bool exchange(int rank, const Plan& plan, ByteView from, Bytes& to) {
    net::RingWire& wire = *ends_[static_cast<std::size_t>(rank)];
    const net::WireAddress peer = address_of((rank + plan.ranks / 2) % plan.ranks);
    std::size_t sent = 0, received = 0;
    net::WireMessage out, in;
    while (sent < plan.bytes || received < plan.bytes) {
      const std::size_t before = sent + received;
      if (sent < plan.bytes) {
        out = message_from(address_of(rank), from.subspan(sent, plan.piece));
        if (wire.send(peer, out)) sent += plan.piece;
      }
      while (wire.receive(in)) {
        const net::Payload& payload = net::payload_of(in);
        if (payload.size() > plan.bytes - received) return false;
        auto at = to.begin() + static_cast<std::ptrdiff_t>(received);
        for (const ByteView part : payload.parts()) at = std::copy(part.begin(), part.end(), at);
        received += payload.size();
      }
      if (const auto failure = wire.failure()) {
        std::fprintf(stderr, "%s\n", failure->to_string().c_str());
        return false;
      }
      if (sent + received == before) std::this_thread::yield();
    }
    return true;
  }

 private:
  static net::WireAddress address_of(int rank) { return {static_cast<std::uint64_t>(rank) + 1}; }
  static net::WireMessage message_from(net::WireAddress self, ByteView piece) {
    net::WireRequest request;
    request.from = self;
    request.from_queue = request.to_queue = 1;
    request.bytes = piece.size();
    request.piece_bytes = static_cast<std::uint32_t>(piece.size());
    request.payload = net::Payload::borrow(piece);
    return {std::move(request)};
  }
  bool join(int a, int b) {
    const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
    std::array<std::array<SharedMapping, 2>, 4> maps;
    constexpr std::size_t kDoorbells = 2;  // index of the first wake-up mapping
    for (std::size_t i = 0; i < maps.size(); ++i) {
      const std::size_t size = i < kDoorbells ? bytes : net::RingDoorbell::kMemoryBytes;
      auto fd = make_sealed_memfd(size);
      for (SharedMapping& map : maps[i]) {
        auto made = fd.ok() ? SharedMapping::map(fd.value(), size) : std::move(fd).error();
        if (!made.ok()) return false;
        map = std::move(made).value();
      }
    }
    const auto add = [&](int self, int peer, std::size_t out) {
      ends_[static_cast<std::size_t>(self)]->add_peer(
          address_of(peer), peer, 0, net::RingWriter(std::move(maps[out][0]), kRingBytes),
          net::RingReader(std::move(maps[1 - out][1]), kRingBytes),
          net::RingDoorbell(std::move(maps[kDoorbells + out][0])));
    };
    add(a, b, 0);
    add(b, a, 1);
    return true;
  }
  std::vector<std::unique_ptr<net::RingWire>> ends_;
};

bool measure_wire(const Plan& plan) {
  auto wires = Wires::make(plan.ranks);
  if (!wires) return report(plan, "wire", std::nullopt);
  // Uses separate memory for all bytes, as the neighbouring stages do. A single reused piece would
  // stay in the processor's caches.
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const std::vector<Bytes> from(ranks, Bytes(plan.bytes, std::byte{1}));
  std::vector<Bytes> to(ranks, Bytes(plan.bytes));
  return report(plan, "wire", measure(plan, [&](int rank) {
                  const auto index = static_cast<std::size_t>(rank);
                  return wires->exchange(rank, plan, from[index], to[index]);
                }));
}

#if defined(ORIEL_STAGES_OF_GPUS)

int count_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Buffers and stream between which a rank copies. Freed by the destructor.
class CopySide {
 public:
  CopySide(int gpu, std::size_t bytes) : gpu_(gpu) {
    ok_ = cudaSetDevice(gpu) == cudaSuccess && cudaMalloc(&device_, bytes) == cudaSuccess &&
          cudaMallocHost(&host_, bytes) == cudaSuccess && cudaStreamCreate(&stream_) == cudaSuccess;
  }
  ~CopySide() {
    cudaSetDevice(gpu_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (host_ != nullptr) cudaFreeHost(host_);
    if (device_ != nullptr) cudaFree(device_);
  }
  CopySide(const CopySide&) = delete;
  CopySide& operator=(const CopySide&) = delete;

  bool copy(const Plan& plan, bool to_host) const {
    if (!ok_ || cudaSetDevice(gpu_) != cudaSuccess) return false;
    for (std::size_t at = 0; at < plan.bytes; at += plan.piece) {
      void* const to = static_cast<char*>(to_host ? host_ : device_) + at;
      const void* const from = static_cast<const char*>(to_host ? device_ : host_) + at;
      const auto kind = to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
      if (cudaMemcpyAsync(to, from, plan.piece, kind, stream_) != cudaSuccess) return false;
    }
    return cudaStreamSynchronize(stream_) == cudaSuccess;
  }

 private:
  int gpu_;
  bool ok_ = false;
  void* device_ = nullptr;
  void* host_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

bool measure_copies(const Plan& plan) {
  if (count_gpus() < plan.ranks) {
    std::fprintf(stderr, "no GPU for each rank: skipped the copies\n");
    return true;
  }
  std::vector<std::unique_ptr<CopySide>> sides;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    sides.push_back(std::make_unique<CopySide>(rank, plan.bytes));
  }
  bool ok = true;
  for (const bool to_host : {true, false}) {
    const auto seconds = measure(
        plan, [&](int rank) { return sides[static_cast<std::size_t>(rank)]->copy(plan, to_host); });
    ok = report(plan, to_host ? "device to host" : "host to device", seconds) && ok;
  }
  return ok;
}

#else

bool measure_copies(const Plan&) {
  std::fprintf(stderr, "built without CUDA: skipped the copies\n");
  return true;
}

#endif

int run(int argc, char** argv) {
  std::int64_t ranks = 4, bytes = 32 << 20, piece = 128 << 10;
  bench::Bench bench(
      "stage_bench",
      "measures by itself each stage that bytes between the GPUs of two \"nodes\" of "
      "one machine pass\nwhen windows are not copied directly: device to pinned "
      "memory, a ring, pinned memory to device. All ranks\nwork at once, each sending "
      "and receiving as much. Without a GPU for each rank the ring alone is measured.\n"
      "Exit status: 0, 1 if a stage failed, 2 after misuse.");
  bench.flag("--ranks", ranks, 2, 64, "ranks, an even number");
  bench.flag("--bytes", bytes, 1, std::int64_t{1} << 40, "bytes that a rank sends: whole pieces");
  bench.flag("--piece", piece, 1, kRingBytes / 2 - 4096, "bytes of a message");
  if (const auto status = bench.parse(argc, argv)) return *status;
  if (ranks % 2 != 0 || bytes % piece != 0) {
    std::fprintf(stderr,
                 "stage_bench: --ranks %lld has to be even, and --bytes %lld a multiple of --piece "
                 "%lld\n",
                 static_cast<long long>(ranks), static_cast<long long>(bytes),
                 static_cast<long long>(piece));
    return 2;
  }
  const Plan plan{static_cast<int>(ranks), static_cast<std::size_t>(bytes),
                  static_cast<std::size_t>(piece), &bench};
  const bool copied = measure_copies(plan);
  return measure_wire(plan) && copied ? 0 : 1;
}

}  // namespace
}  // namespace oriel

int main(int argc, char** argv) {
  return oriel::run(argc, argv);
}
