// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include <cuda_runtime.h>

#include "net/process/nic_process.hpp"
#include "net/soft/gpu_nic_kernels.hpp"
#include "net/soft/gpu_side.hpp"
#include "net/support/run_nic.hpp"
#include "net/wire/ring_pair.hpp"
#include "support/cuda/gpu_runtime.hpp"

/// Two ranks on GPUs as threads of this process. Each has a software NIC that a thread of its own
/// drives. The copies for a NIC are made by this thread or by the GPU's process. Outside of
/// destructors, a failed CUDA call throws std::runtime_error or fails a REQUIRE.
namespace oriel::net::test {

using oriel::test::GpuStream;
using oriel::test::must;

inline void must_driver(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) throw std::runtime_error(cuda_error(what, status).to_string());
}

/// Pinned memory of the host, zeroed.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count = 1) {
    void* made = nullptr;
    must(cudaHostAlloc(&made, count * sizeof(T), cudaHostAllocPortable), "cudaHostAlloc");
    std::memset(made, 0, count * sizeof(T));
    words_ = static_cast<T*>(made);
  }
  ~Pinned() { cudaFreeHost(words_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* get() const { return words_; }
  T& operator*() const { return *words_; }
  T& operator[](std::size_t at) const { return words_[at]; }

 private:
  T* words_ = nullptr;
};

/// Returns the process that copies on a GPU; kept until this program ends.
inline std::shared_ptr<NicProcess> nic_process_of(int device) {
  static auto* const processes = new std::map<int, std::shared_ptr<NicProcess>>;
  auto& process = (*processes)[device];
  if (process == nullptr) {
    const char* const named = std::getenv("ORIEL_NIC_PROGRAM");
    NicProcess::Options options;
    options.program = must_have(NicProcess::find_program(named != nullptr ? named : ""));
    options.gpu = uuid_of(device);
    process = must_have(NicProcess::start(options));
    const Status ready = process->await_ready(Deadline::after(std::chrono::seconds(20)));
    if (!ready.ok()) throw std::runtime_error(ready.error().to_string());
  }
  return process;
}

inline constexpr std::size_t kSignalBytes = 4096;  // after the data

/// Options that both ranks of a test share.
struct GpuRankOptions {
  std::array<int, 2> devices;  ///< GPUs of the ranks, which may be the same
  std::size_t bytes = 0;       ///< size of the data
  bool by_process = false;
  DoorbellMode mode = DoorbellMode::alone;
  std::uint32_t fetch_slots = SendQueue::Options().fetch_slots;
};

struct GpuRank : GpuSide {
  GpuRank(std::unique_ptr<Wire> wire, const GpuRankOptions& options, std::size_t which)
      : GpuSide(std::move(wire), side(options, options.devices[which])),
        device(options.devices[which]),
        data_bytes(options.bytes) {
    must(load_gpu_nic_kernels(), "loading kernels");
    must(cudaMemset(memory(), 0, range.bytes), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    queue.emplace(make_queue({.fetch_slots = options.fetch_slots,
                              .receives = 256,
                              .mode = options.mode,
                              .piece_bytes = 64 << 10}));
  }
  void start() { thread.emplace(run_nic(*nic)); }
  /// Copies by the driver, without a kernel.
  Bytes read(GpuStream& stream) const {
    Bytes bytes(data_bytes);
    must(cudaMemcpyAsync(bytes.data(), memory(), data_bytes, cudaMemcpyDefault, stream.handle),
         "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream.handle), "reading memory");
    return bytes;
  }
  void write(GpuStream& stream, const Bytes& bytes) const {
    must(cudaMemcpyAsync(memory(), bytes.data(), bytes.size(), cudaMemcpyDefault, stream.handle),
         "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream.handle), "writing memory");
  }

  int device;
  std::size_t data_bytes;
  std::optional<SendQueue> queue;
  std::optional<NicThread> thread;

 private:
  static Options side(const GpuRankOptions& options, int device) {
    must(cudaSetDevice(device), "cudaSetDevice");
    must(cudaFree(nullptr), "cudaFree");
    Options made{{.device = device}, options.bytes + kSignalBytes, true};
    if (options.by_process) made.process = nic_process_of(device);
    made.others.assign(options.devices.begin(), options.devices.end());
    return made;
  }
};

struct GpuRanks {
  GpuRanks(const GpuRankOptions& options, bool direct)
      : a(std::move(rings.a), options, 0), b(std::move(rings.b), options, 1) {
    if (direct) {
      a.map(2, b);
      b.map(1, a);
    }
    REQUIRE(a.queue->connect({0, {2}, b.queue->number(), 0, 2}).ok());
    REQUIRE(b.queue->connect({0, {1}, a.queue->number(), 0, 1}).ok());
    a.start();
    b.start();
  }
  GpuPath path(bool from_a) const {
    const GpuRank& here = from_a ? a : b;
    const GpuRank& there = from_a ? b : a;
    GpuPath made;
    made.queue = here.queue->view();
    made.local = here.region;
    made.remote = there.region;
    made.own_signal = here.data_bytes;
    made.far_signal = there.data_bytes;
    made.control.timeout_ns = 20'000'000'000;
    return made;
  }

  RingPair rings{std::size_t{1} << 20};
  GpuRank a, b;
};

}  // namespace oriel::net::test
