// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/cuda_scope.hpp"
#include "net/copy/copy_engine_cuda.hpp"
#include "net/mlx5/queue_pages_cuda.hpp"
#include "net/process/nic_server_thread.hpp"
#include "net/soft/nic_pair.hpp"

namespace oriel::net::test {

template <class T>
T must_have(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().to_string());
  return std::move(result).value();
}

/// Rank on a GPU: its NIC, CudaQueuePages for its queues, and registered memory of the GPU.
struct GpuSide {
  struct Options {
    CudaCopyEngine::Options engine{};
    std::size_t bytes = 65'536;
    bool own_words = false;
    std::shared_ptr<NicProcess> process = nullptr;  ///< copies; null: this process copies
    std::vector<int> others = {};                   ///< other GPUs that can access the memory
  };
  GpuSide(std::unique_ptr<Wire> wire, const Options& options)
      : context(must_have(PrimaryContext::retain(options.engine.device))),
        process(options.process),
        pages(must_have(CudaQueuePages::create(options.engine.device))) {
    const auto scope = CudaScope::enter(context.get());
    shared.emplace(options.engine.device, options.bytes, options.others);
    if (process != nullptr) {
      engine = std::make_unique<CudaCopyEngine>(
          must_have(NicProcess::open_stream(process, options.engine.slots,
                                            static_cast<std::uint32_t>(options.engine.slot_bytes))),
          options.engine.slots);
      show(*this);
    } else {
      engine = must_have(CudaCopyEngine::create(options.engine));
    }
    nic = std::make_unique<NicSoft>(NicSoft::Options{.gpu = engine.get()});
    nic->add_wire(std::move(wire));
    range.address = shared->address;
    range.bytes = options.bytes;
    range.memory = memory();
    range.access = kAllAccess;
    range.place = MemoryPlace::gpu;
    range.own_words = options.own_words;
    key = must_have(nic->register_memory(range));
    region.address = range.address;
    region.bytes = range.bytes;
    region.keys[0] = key;
  }
  ~GpuSide() {
    nic.reset();
    engine.reset();
    for (const std::byte* const base : shown) process->hide(base);
    const auto scope = CudaScope::enter(context.get());
    shared.reset();
  }
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  /// Exports a side's memory to this side's process, if there is one.
  void show(const GpuSide& side) {
    if (process == nullptr) return;
    REQUIRE(process->show(side.memory(), side.shared->bytes, side.shared->handle()).ok());
    shown.push_back(side.memory());
  }
  /// Maps the memory of the peer with this number, and marks this side's memory as reached by the
  /// peer.
  void map(std::uint64_t peer, const GpuSide& side) {
    show(side);
    REQUIRE(nic->map_peer_memory(peer, side.key, side.range).ok());
    nic->set_reached(peer, key, true);
  }
  SendQueue make_queue(SendQueue::Options options = {}) {
    options.pages = pages.get();
    return must_have(SendQueue::create(*nic, options));
  }
  std::byte* memory() const { return shared->data(); }

  PrimaryContext context;
  std::optional<ShareableGpuMemory> shared;
  std::shared_ptr<NicProcess> process;
  std::vector<const std::byte*> shown;
  std::unique_ptr<CudaCopyEngine> engine;
  std::unique_ptr<CudaQueuePages> pages;
  std::unique_ptr<NicSoft> nic;
  MemoryRange range;
  std::uint32_t key = 0;
  dq::Region region;
};

}  // namespace oriel::net::test
