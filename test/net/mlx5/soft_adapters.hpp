// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/mlx5/fake_verbs.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net::test {

/// Adapters of the model of verbs that execute: behind each is a software NIC, which finds rings,
/// records, doorbells and completions where the commands say. They do nothing by themselves but
/// with a RunningAdapters.
class SoftAdapters {
 public:
  /// `address_of` says where on the wire the adapter with a LID is, of this process or of another.
  SoftAdapters(FakeVerbs& verbs, std::function<WireAddress(std::uint16_t lid)> address_of)
      : verbs_(verbs), address_of_(std::move(address_of)) {
    verbs.adapters.clear();
    verbs.on_domain = [this](int adapter) { return of(adapter).create_domain(); };
    verbs.on_register = [this](int adapter, std::uint32_t domain, void* address, std::size_t bytes,
                               int access) {
      MemoryRange range;
      range.address = reinterpret_cast<std::uint64_t>(address);
      range.bytes = bytes;
      range.memory = static_cast<std::byte*>(address);
      range.access = static_cast<std::uint8_t>(access);
      return of(adapter).register_memory(domain, range).value();
    };
    verbs.on_deregister = [this](int adapter, std::uint32_t key) {
      expect(of(adapter).deregister_memory(key), "giving back a key");
    };
    add_queues();
  }
  /// All of them before any is opened.
  void add(const std::string& name, std::uint16_t lid, std::unique_ptr<Wire> wire) {
    verbs_.adapters.push_back(FakeVerbs::adapter(name));
    verbs_.adapters.back().lid = lid;
    nics.emplace_back().add_wire(std::move(wire));
  }
  NicSoft& of(int adapter) { return nics[static_cast<std::size_t>(adapter)]; }

  /// Before a peer that is silent is given up: this, times eight.
  Duration answer_timeout = QueueSetup().answer_timeout;
  std::uint32_t piece_bytes = QueueSetup().piece_bytes;  ///< what one message carries at most
  std::deque<NicSoft> nics;

 private:
  void add_queues() {
    verbs_.on_create = [this](const FakeVerbs::QueuePair& pair) {
      QueueSetup setup;
      setup.memory.ring = pair.ring;
      setup.memory.depth = pair.depth;
      setup.memory.record = pair.record;
      setup.memory.doorbell = pair.doorbell;
      setup.memory.completions = pair.completions;
      setup.memory.receive_completions = pair.received;
      setup.memory.receive_count = pair.received_elements;
      setup.domain = pair.domain;
      setup.answer_timeout = answer_timeout;
      setup.piece_bytes = piece_bytes;
      return of(pair.adapter).create_queue(setup).value();
    };
    verbs_.on_ready = [this](const FakeVerbs::QueuePair& pair) {
      expect_empty_receives(pair);
      const QueuePeer peer{0, address_of_(pair.remote_lid), pair.remote, epochs_[place_of(pair)]};
      expect(of(pair.adapter).connect(pair.number, peer), "connecting");
    };
    verbs_.on_reset = [this](const FakeVerbs::QueuePair& pair) {
      // A register keeps nothing, and a word does.
      std::atomic_ref<std::uint64_t>(*pair.doorbell).store(0, std::memory_order_relaxed);
      ++epochs_[place_of(pair)];
      expect(of(pair.adapter).to_reset(pair.number), "resetting");
    };
    verbs_.on_error = [this](const FakeVerbs::QueuePair& pair) {
      expect(of(pair.adapter).to_error(pair.number), "ending");
    };
    verbs_.on_destroy = [this](const FakeVerbs::QueuePair& pair) {
      expect(of(pair.adapter).destroy_queue(pair.number), "destroying");
    };
  }
  /// What an adapter makes of a receive that an immediate uses up: a list that ends at once.
  void expect_empty_receives(const FakeVerbs::QueuePair& pair) {
    constexpr std::uint8_t kEmpty[16] = {0, 0, 0, 0, 0, 0, 1, 0};
    for (std::uint32_t i = 0; i < pair.receive_count; ++i) {
      if (std::memcmp(pair.receives + i * sizeof kEmpty, kEmpty, sizeof kEmpty) == 0) continue;
      verbs_.violations.push_back("receive " + std::to_string(i) + " has room for something");
    }
  }
  static std::pair<int, std::uint32_t> place_of(const FakeVerbs::QueuePair& pair) {
    return {pair.adapter, pair.number};
  }
  void expect(const Status& done, const char* what) {
    if (!done.ok()) verbs_.violations.push_back(std::string(what) + ": " + done.error().message());
  }

  FakeVerbs& verbs_;
  std::function<WireAddress(std::uint16_t lid)> address_of_;
  std::map<std::pair<int, std::uint32_t>, std::uint32_t> epochs_;  // for an adapter's first packets
};

/// Has adapters execute, a thread each, as long as it lives.
class RunningAdapters {
 public:
  explicit RunningAdapters(SoftAdapters& adapters) {
    for (NicSoft& nic : adapters.nics) {
      threads_.emplace_back([&nic](const std::stop_token& stop) { run(nic, stop); });
    }
  }

 private:
  static void run(NicSoft& nic, const std::stop_token& stop) {
    constexpr int kYields = 100;
    for (int idle = 0; !stop.stop_requested();) {
      idle = nic.progress() ? 0 : idle + 1;
      if (idle > kYields) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      } else if (idle > 0) {
        std::this_thread::yield();
      }
    }
  }
  std::vector<std::jthread> threads_;
};

}  // namespace oriel::net::test
