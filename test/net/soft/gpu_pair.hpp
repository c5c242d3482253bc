// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>

#include <catch2/catch.hpp>

#include "net/process/nic_server_thread.hpp"
#include "net/queue/operations_body.hpp"
#include "net/soft/gpu_side.hpp"
#include "support/cuda/checked_cuda.hpp"

namespace oriel::net::test {

/// Driver model whose streams run late: each wait of a thread runs a few steps.
struct LateModel : oriel::test::CheckedCuda {
  static inline LateModel* model = nullptr;
  static inline std::mt19937_64 random{1};
  explicit LateModel(int devices = 2) : CheckedCuda({.devices = devices}) { model = this; }
  ~LateModel() { model = nullptr; }
  static void step() { model->run_streams(static_cast<int>(random() % 3)); }
};

/// Memory policy whose waits drive the NICs and then the model's streams.
struct LateMemory : DrivingMemory {
  static void relax() {
    DrivingMemory::relax();
    LateModel::step();
  }
};

/// Two ranks on GPUs of the model with one queue, all driven by the calling thread. If `direct`,
/// each rank has mapped the other's memory. If `has_servers`, threads stand in for the processes
/// that copy.
struct GpuPair : PairCalls<GpuPair, LateMemory> {
  explicit GpuPair(bool direct, std::size_t size = 65'536, const SendQueue::Options& options = {},
                   bool own_words = false, bool has_servers = false)
      : bytes(size),
        a(exchange.attach(), side(0, own_words, has_servers)),
        b(exchange.attach(), side(1, own_words, has_servers)),
        there(a.make_queue(options)),
        back(b.make_queue(options)),
        all{a.nic.get(), b.nic.get()},
        scope(all) {
    std::memset(a.memory(), 0, bytes);
    std::memset(b.memory(), 0, bytes);
    connect(there, back);
    control.timeout_ns = 20'000'000'000;
    if (!direct) return;
    a.map(2, b);
    b.map(1, a);
  }
  void connect(SendQueue& of_a, SendQueue& of_b) {
    REQUIRE(of_a.connect({0, b.nic->address(0), of_b.number(), 0, 2}).ok());
    REQUIRE(of_b.connect({0, a.nic->address(0), of_a.number(), 0, 1}).ok());
  }
  void progress() {
    a.nic->progress();
    b.nic->progress();
  }
  /// Fills a side's memory with random bytes.
  void fill(const GpuSide& side, unsigned seed) const {
    std::mt19937_64 random(seed);
    std::generate_n(side.memory(), bytes, [&] { return static_cast<std::byte>(random()); });
  }
  Bytes copy_of(const GpuSide& side) const { return {side.memory(), side.memory() + bytes}; }
  /// Returns true if b's memory at `there_at` equals a's at `here`.
  bool same(std::size_t here, std::size_t there_at, std::size_t count) const {
    return std::memcmp(a.memory() + here, b.memory() + there_at, count) == 0;
  }
  const dq::QueueView& view() const { return there.view(); }
  OperationsPath path() const { return {view(), a.region, b.region, control}; }

  std::size_t bytes;
  std::array<std::optional<NicServerThread>, 2> servers;
  LocalWires exchange;
  GpuSide a, b;
  SendQueue there, back;
  std::array<NicSoft*, 2> all;
  DrivingScope scope;
  device::WaitControl control;

 private:
  GpuSide::Options side(int device, bool own_words, bool has_server) {
    GpuSide::Options options{{device, 4096, 6}, bytes, own_words};
    if (has_server) {
      options.process = servers[static_cast<std::size_t>(device)].emplace(device).process;
    }
    return options;
  }
};

}  // namespace oriel::net::test
