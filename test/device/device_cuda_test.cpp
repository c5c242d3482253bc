// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <cuda.h>
#include <cuda_runtime.h>

#include "oriel/device/barrier.hpp"

#include "base/cuda_table.hpp"
#include "device/bodies.hpp"
#include "device/device_kernels.hpp"
#include "support/cuda/needs_gpu.hpp"

namespace oriel::test {
namespace {

const NeedsGpu needs_gpu;

using device::StallRecord;
using device::WaitOutcome;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Control memory of several ranks on one GPU, at slots of 4 GiB, and pinned memory for the
/// kernels' results.
class GpuTeam {
 public:
  explicit GpuTeam(int ranks) : ranks_(ranks) {
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    REQUIRE(cudaFree(nullptr) == cudaSuccess);  // creates the context
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&host_), sizeof *host_) == cudaSuccess);
    std::memset(static_cast<void*>(host_), 0, sizeof *host_);
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    bytes_ = 2 * 1024 * 1024;
    REQUIRE(cuda().mem_address_reserve(&base_, kSlot * static_cast<std::size_t>(ranks), kSlot, 0,
                                       0) == CUDA_SUCCESS);
    const CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (int rank = 0; rank < ranks; ++rank) {
      CUmemGenericAllocationHandle memory;
      REQUIRE(cuda().mem_create(&memory, bytes_, &wanted, 0) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_map(slot(rank), bytes_, 0, memory, 0) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_release(memory) == CUDA_SUCCESS);
      REQUIRE(cuda().mem_set_access(slot(rank), bytes_, &access, 1) == CUDA_SUCCESS);
      REQUIRE(cudaMemset(reinterpret_cast<void*>(slot(rank)), 0, bytes_) == cudaSuccess);
    }
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    for (int rank = 0; rank < kMaxRanks; ++rank) host_->world_ranks[rank] = 10 + rank;
  }
  ~GpuTeam() {
    cudaDeviceSynchronize();
    for (int rank = 0; rank < ranks_; ++rank) cuda().mem_unmap(slot(rank), bytes_);
    cuda().mem_address_free(base_, kSlot * static_cast<std::size_t>(ranks_));
    cudaFreeHost(host_);
    cudaStreamDestroy(stream_);
  }
  GpuTeam(const GpuTeam&) = delete;
  GpuTeam& operator=(const GpuTeam&) = delete;

  KernelArguments arguments() const {
    KernelArguments result;
    device::CommView& view = result.view;
    view.world_size = view.lsa_size = ranks_;
    view.lsa_world_ranks = host_->world_ranks;
    view.control_base = reinterpret_cast<char*>(base_);
    view.control_stride_4g = 1;
    view.barrier_slots = ControlLayout::kBarrierSlots;
    view.barrier_offset = ControlLayout::kBarrier;
    view.wait.abort = &host_->abort;
    view.wait.stall = host_->stalls;
    view.wait.timeout_ns = 20'000'000'000;
    result.results = host_->results;
    return result;
  }
  char* at(int rank, std::uint64_t offset) const {
    return reinterpret_cast<char*>(slot(rank)) + offset;
  }
  void copy_in(int rank, std::uint64_t offset, const void* from, std::size_t bytes) {
    REQUIRE(cudaMemcpy(at(rank, offset), from, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void copy_out(int rank, std::uint64_t offset, void* to, std::size_t bytes) {
    REQUIRE(cudaMemcpy(to, at(rank, offset), bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  }
  void finish(int launched = 0) {
    REQUIRE(launched == 0);
    REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess);
  }
  // Access words that the host and kernels share while kernels run.
  void set(std::uint32_t& word, std::uint32_t value) {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
  }
  std::uint64_t get(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

  static constexpr int kMaxRanks = 8;
  struct Host {
    std::uint32_t results[64];
    StallRecord stalls[kMaxRanks];
    std::int32_t world_ranks[kMaxRanks];
    alignas(64) std::uint32_t abort;
    alignas(64) std::uint32_t flag;
  };
  Host& host() { return *host_; }
  cudaStream_t stream() { return stream_; }

 private:
  CUdeviceptr slot(int rank) const { return base_ + kSlot * static_cast<std::size_t>(rank); }

  static constexpr std::size_t kSlot = std::size_t{1} << 32;
  int ranks_;
  std::size_t bytes_ = 0;
  CUdeviceptr base_ = 0;
  cudaStream_t stream_ = nullptr;
  Host* host_ = nullptr;
};

TEST_CASE("on a GPU every thread has the right rank, size and vote in its warp and CTA",
          "[req:1.22]") {
  GpuTeam team(1);
  team.finish(launch_groups(team.arguments(), team.stream()));
  CHECK(team.host().results[0] == 1);
}

TEST_CASE("every memory access works on a GPU", "[req:1.22]") {
  GpuTeam team(1);
  team.finish(
      launch_accesses(team.arguments(), team.at(0, ControlLayout::kPackets), team.stream()));
  CHECK(team.host().results[0] == 1);
}

TEST_CASE("packets carry an exchange among CTAs, also where flags wrap", "[req:1.22]") {
  const auto kind = GENERATE(PacketKind::packet8, PacketKind::packet16);
  const int ranks = GENERATE(2, 5, 8);
  const std::uint32_t flag = GENERATE(1u, 0xffffffffu - 2000);
  CAPTURE(static_cast<int>(kind), ranks, flag);
  GpuTeam team(ranks);
  team.finish(launch_exchange(kind, team.arguments(), flag, 4000, 300, team.stream()));
  for (int rank = 0; rank < ranks; ++rank) CHECK(team.host().results[rank] == 1);
}

// In a warp, the vote passes on to the other lanes what one lane has acquired.
TEST_CASE("the LSA barrier orders memory among CTAs and among warps", "[req:1.22]") {
  const int ranks = GENERATE(1, 2, 8);
  const std::uint32_t slots = GENERATE(1u, 4u);
  const GroupKind kind = GENERATE(GroupKind::cta, GroupKind::warp);
  CAPTURE(ranks, slots, static_cast<int>(kind));
  GpuTeam team(ranks);
  team.finish(launch_barrier(team.arguments(), slots, 3000, team.stream(), kind));
  for (std::uint32_t i = 0; i < slots * static_cast<std::uint32_t>(ranks); ++i) {
    CHECK(team.host().results[i] == 1);
  }
}

TEST_CASE("a barrier's epoch goes on in replayed graphs and plain launches", "[req:1.22]") {
  constexpr int kRanks = 4;
  GpuTeam team(kRanks);
  // Sets the epoch shortly before its wrap, as if as many barriers had passed already.
  std::vector<std::uint32_t> slot(device::LsaBarrierLayout::slot_bytes(kRanks) / 4);
  slot[0] = 0xffffffffu - 500;
  for (std::size_t peer = 0; peer < kRanks; ++peer) slot[16 + peer] = slot[0];
  for (int rank = 0; rank < kRanks; ++rank) {
    team.copy_in(rank, ControlLayout::kBarrier, slot.data(), slot.size() * 4);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(team.stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(launch_barrier(team.arguments(), 1, 7, team.stream()) == 0);
  REQUIRE(cudaStreamEndCapture(team.stream(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (int i = 0; i < 100; ++i) {
    std::memset(team.host().results, 0, sizeof team.host().results);
    if (i % 3 == 2) {
      team.finish(launch_barrier(team.arguments(), 1, 5, team.stream()));
    } else {
      team.finish(cudaGraphLaunch(executable, team.stream()));
    }
    for (int rank = 0; rank < kRanks; ++rank) REQUIRE(team.host().results[rank] == 1);
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("a wait in a kernel ends at its deadline and names the culprit", "[req:1.12]") {
  GpuTeam team(1);
  KernelArguments arguments = team.arguments();
  arguments.view.wait.timeout_ns = 150'000'000;
  const auto start = steady_clock::now();
  team.finish(launch_wait(arguments, &team.host().flag, 1, {7, 3}, team.stream()));
  const auto elapsed = steady_clock::now() - start;
  CHECK(team.host().results[0] == 100 + static_cast<std::uint32_t>(WaitOutcome::timed_out));
  CHECK(elapsed >= milliseconds(149));
  CHECK(elapsed < milliseconds(2000));
  CHECK(device::stalled_rank(team.host().stalls[0].gave_up) == 7);
  CHECK(team.host().stalls[0].waiting == 0);
}

TEST_CASE("the abort word ends a wait in a kernel", "[req:1.12]") {
  GpuTeam team(1);
  KernelArguments arguments = team.arguments();
  arguments.view.wait.timeout_ns = 0;
  REQUIRE(launch_wait(arguments, &team.host().flag, 1, {1, 1}, team.stream()) == 0);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(cudaStreamQuery(team.stream()) == cudaErrorNotReady);
  const auto start = steady_clock::now();
  team.set(team.host().abort, 1);
  team.finish();
  CHECK(steady_clock::now() - start < milliseconds(250));
  CHECK(team.host().results[0] == 100 + static_cast<std::uint32_t>(WaitOutcome::aborted));
}

TEST_CASE("a long wait in a kernel is on record until it ends", "[req:1.12]") {
  GpuTeam team(1);
  const auto start = steady_clock::now();
  REQUIRE(launch_wait(team.arguments(), &team.host().flag, 1, {3, 0xabcdef0123u}, team.stream()) ==
          0);
  StallRecord& stall = team.host().stalls[0];
  while (team.get(stall.waiting) == 0 && steady_clock::now() - start < milliseconds(5000)) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  CHECK(steady_clock::now() - start >= milliseconds(990));
  CHECK(device::stalled_rank(team.get(stall.waiting)) == 3);
  CHECK(team.get(stall.epoch) == 0xabcdef0123u);
  CHECK(team.get(stall.since_ns) != 0);
  team.set(team.host().flag, 1);
  team.finish();
  CHECK(team.host().results[0] == 100);
  CHECK(stall.waiting == 0);
  CHECK(stall.gave_up == 0);
}

TEST_CASE("a barrier in a kernel that gave up names the culprit and publishes nothing more",
          "[req:1.12]") {
  GpuTeam team(2);
  KernelArguments arguments = team.arguments();
  arguments.view.wait.timeout_ns = 50'000'000;
  team.finish(launch_lonely_barrier(arguments, team.stream()));
  CHECK(team.host().results[0] == 100 + static_cast<std::uint32_t>(WaitOutcome::timed_out));
  CHECK(device::stalled_rank(team.host().stalls[0].gave_up) == 11);
  std::uint32_t epoch = 0;
  team.copy_out(1, ControlLayout::kBarrier + 64, &epoch, sizeof epoch);
  CHECK(epoch == 1);
}

TEST_CASE("a kernel reads a window's addresses from its handle", "[req:1.22]") {
  GpuTeam team(3);
  const std::int32_t lsa_index_of[] = {-1, 0, 1, -1, 2};
  team.copy_in(0, ControlLayout::kPackets + 512, lsa_index_of, sizeof lsa_index_of);
  device::WindowObject object{};
  object.flat_base = team.at(0, ControlLayout::kPackets);
  object.lsa_rank = 1;
  object.world_rank = 2;
  object.stride_4g = 1;
  object.magic = device::kWindowMagic;
  object.version = device::kWindowVersion;
  object.size_bytes = 4096;
  object.world_size = 5;
  object.lsa_size = 3;
  object.lsa_index_of =
      reinterpret_cast<const std::int32_t*>(team.at(0, ControlLayout::kPackets + 512));
  team.copy_in(0, ControlLayout::kPackets, &object, sizeof object);
  team.finish(launch_window(
      team.arguments(),
      reinterpret_cast<const device::WindowObject*>(team.at(0, ControlLayout::kPackets)),
      team.stream()));
  for (int i = 0; i < 6; ++i) {
    CAPTURE(i);
    CHECK(team.host().results[i] == 1);
  }
}

TEST_CASE("bytes that bulk copies move through shared memory arrive unchanged", "[req:1.22]") {
  const std::uint32_t bytes = GENERATE(16u, 4096u, 32768u);
  GpuTeam team(1);
  std::vector<unsigned char> from(bytes);
  std::vector<unsigned char> to(bytes);
  for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<unsigned char>(i * 31 % 251 + 1);
  team.copy_in(0, ControlLayout::kPackets, from.data(), bytes);
  team.finish(launch_bulk_copy(team.arguments(), team.at(0, ControlLayout::kPackets),
                               team.at(0, ControlLayout::kPackets + 65536), bytes, team.stream()));
  if (team.host().results[0] == 1) {
    WARN("this GPU has no bulk copies");
    return;
  }
  CHECK(team.host().results[0] == 100);
  team.copy_out(0, ControlLayout::kPackets + 65536, to.data(), bytes);
  CHECK(from == to);
}

TEST_CASE("a user's kernel fuses an element-wise step with an all-reduce on a GPU", "[req:1.25]") {
  const int ranks = GENERATE(1, 2, 3, 8);
  const std::uint32_t blocks = GENERATE(1u, 4u);
  CAPTURE(ranks, blocks);
  constexpr std::uint64_t kCount = 10'007;
  constexpr std::uint64_t kX = 262'144;
  constexpr std::uint64_t kY = kX + (kCount + 3) / 4 * 16;  // windows begin at multiples of 16
  GpuTeam team(ranks);
  std::vector<float> expected(kCount);
  std::vector<float> values(kCount);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i) {
      values[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 64) - 60;
      expected[i] += values[i];
    }
    team.copy_in(rank, kX, values.data(), kCount * sizeof(float));
  }
  for (float& value : expected) value = value > 0 ? 0.5f * value : 0;
  team.finish(launch_example(team.arguments(), kX, kY, kCount, 0.5f, blocks, team.stream()));
  for (std::uint32_t i = 0; i < blocks * static_cast<std::uint32_t>(ranks); ++i) {
    CHECK(team.host().results[i] == 1);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    team.copy_out(rank, kY, values.data(), kCount * sizeof(float));
    CHECK(values == expected);
  }
}

}  // namespace
}  // namespace oriel::test
