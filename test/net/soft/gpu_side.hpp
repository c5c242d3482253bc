// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/cuda_scope.hpp"
#include "net/copy/data_mover_cuda.hpp"
#include "net/mlx5/queue_pages_cuda.hpp"
#include "net/process/nic_server_thread.hpp"
#include "net/soft/nic_pair.hpp"
#include "support/cuda/fake_cuda.hpp"

namespace oriel::net::test {

/// The driver's model whose streams run late, a few steps at a time, whenever a thread waits.
struct LateModel {
  static inline oriel::test::FakeCuda* model = nullptr;
  static inline std::mt19937_64 random{1};
  explicit LateModel(int devices = 2) {
    oriel::test::FakeCuda::Options options;
    options.devices = devices;
    made = std::make_unique<oriel::test::FakeCuda>(options);
    model = made.get();
  }
  /// What was made in it has to be gone by then.
  ~LateModel() {
    CHECK(made->violations().empty());
    CHECK(made->held() == oriel::test::FakeCuda::Held{});
    CHECK(made->context_depth() == 0);
    model = nullptr;
  }
  static void step() { model->run_streams(static_cast<int>(random() % 3)); }
  std::unique_ptr<oriel::test::FakeCuda> made;
};

/// Waits drive the NICs, and then the model's streams.
struct LateMemory : DrivingMemory {
  static void relax() {
    DrivingMemory::relax();
    LateModel::step();
  }
};

/// A rank on a GPU: its NIC, queues in pinned memory, registered memory of the GPU. With `servers`
/// a thread plays the process that copies.
struct GpuSide {
  GpuSide(LocalExchange& exchange, int device, std::size_t size, bool own_words = false,
          bool servers = false)
      : context(PrimaryContext::retain(device).value()), bytes(size) {
    CudaMover::Options options;
    options.device = device;
    options.slot_bytes = 4096;
    options.slots = 6;
    if (servers) {
      server.emplace(device);
      mover = std::make_unique<CudaMover>(
          NicProcess::open_stream(server->process, options.slots, 4096).value(), options.slots);
    } else {
      mover = CudaMover::create(options).value();
    }
    pages = CudaQueuePages::create(device).value();
    nic = std::make_unique<NicSoft>(NicSoft::Options{.gpu = mover.get()});
    nic->add_wire(exchange.attach());
    const auto scope = CudaScope::enter(context.get());
    if (servers) {
      shared.emplace(device, bytes);
      address = shared->address;
      show(*this);
    } else {
      REQUIRE(cuda().mem_alloc(&address, bytes) == CUDA_SUCCESS);
    }
    std::memset(memory(), 0, bytes);
    MemoryRange range = own_range();
    range.own_words = own_words;
    key = nic->register_memory(range).value();
    region.address = address;
    region.bytes = bytes;
    region.keys[0] = key;
  }
  ~GpuSide() {
    nic = nullptr;
    const auto scope = CudaScope::enter(context.get());
    if (shared) {
      server->process->hide(memory());
      shared.reset();
    } else {
      static_cast<void>(cuda().mem_free(address));
    }
  }
  /// To this side's process, if it has one.
  void show(const GpuSide& side) {
    if (!server) return;
    REQUIRE(server->process->show(side.memory(), side.shared->bytes, side.shared->handle()).ok());
  }
  void hide(const GpuSide& side) {
    if (server) server->process->hide(side.memory());
  }
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  MemoryRange own_range() const {
    MemoryRange range;
    range.address = address;
    range.bytes = bytes;
    range.memory = memory();
    range.access = kAllAccess;
    range.place = MemoryPlace::gpu;
    return range;
  }
  SendQueue make_queue(SendQueue::Options options = {}) {
    options.pages = pages.get();
    return SendQueue::create(*nic, options).value();
  }
  std::byte* memory() const { return reinterpret_cast<std::byte*>(address); }

  PrimaryContext context;
  std::size_t bytes;
  std::optional<NicServerThread> server;
  std::optional<ShareableGpuMemory> shared;
  std::unique_ptr<CudaMover> mover;
  std::unique_ptr<CudaQueuePages> pages;
  std::unique_ptr<NicSoft> nic;
  CUdeviceptr address = 0;
  std::uint32_t key = 0;
  dq::Region region;
};

/// Two of them with one queue, all driven by the calling thread. `direct`: each has mapped the
/// other's memory.
struct GpuPair {
  explicit GpuPair(bool direct, std::size_t bytes = 65536, SendQueue::Options options = {},
                   bool own_words = false, bool servers = false)
      : a(exchange, 0, bytes, own_words, servers),
        b(exchange, 1, bytes, own_words, servers),
        there(a.make_queue(options)),
        back(b.make_queue(options)),
        all{a.nic.get(), b.nic.get()},
        scope(all) {
    REQUIRE(there.connect({0, b.nic->address(0), back.number(), 0, 2}).ok());
    REQUIRE(back.connect({0, a.nic->address(0), there.number(), 0, 1}).ok());
    control.timeout_ns = 20'000'000'000;
    if (!direct) return;
    a.show(b);
    b.show(a);
    REQUIRE(a.nic->map_peer_memory(2, b.key, b.own_range()).ok());
    REQUIRE(b.nic->map_peer_memory(1, a.key, a.own_range()).ok());
    a.nic->set_reached(2, a.key, true);
    b.nic->set_reached(1, b.key, true);
  }
  const dq::QueueView& view() const { return there.view(); }
  dq::Transfer transfer(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {a.region, from, b.region, to, bytes};
  }
  dq::QueueOutcome wait(dq::Posted posted) {
    if (posted.outcome != dq::QueueOutcome::done) return posted.outcome;
    return dq::wait_complete<LateMemory>(view(), posted.end, control);
  }
  dq::QueueError error() const { return dq::decode_error(*there.memory().first_error); }

  LocalExchange exchange;
  GpuSide a, b;
  SendQueue there, back;
  std::array<NicSoft*, 2> all;
  DrivingScope scope;
  device::WaitControl control;
};

}  // namespace oriel::net::test
