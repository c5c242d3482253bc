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
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oriel/device/memory.hpp"
#include "oriel/device/queue.hpp"

#include "net/mlx5/fake_verbs.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net::test {

/// Adapters of the model of verbs that execute work. Behind each is a software NIC, which finds
/// rings, records, doorbells and completions where the commands say. They make progress only in
/// progress(), which a RunningAdapters calls.
class SoftAdapters {
 public:
  /// `address_of` returns the wire address of the adapter with a LID, in this process or another.
  SoftAdapters(FakeVerbs& verbs, std::function<WireAddress(std::uint16_t lid)> address_of)
      : verbs_(verbs), address_of_(std::move(address_of)) {
    verbs.adapters.clear();
    verbs.on_register = [this](int adapter, void* address, std::size_t bytes, int access) {
      MemoryRange range;
      range.address = reinterpret_cast<std::uint64_t>(address);
      range.bytes = bytes;
      range.memory = static_cast<std::byte*>(address);
      range.access = static_cast<std::uint8_t>(access);
      return of(adapter).register_memory(range).value();
    };
    verbs.on_deregister = [this](int adapter, std::uint32_t key) {
      expect(of(adapter).deregister_memory(key), "giving back a key");
    };
    add_queues();
  }
  /// Adds an adapter; all adapters must be added before any is opened.
  void add(const std::string& name, std::uint16_t lid, std::unique_ptr<Wire> wire) {
    verbs_.adapters.push_back(FakeVerbs::adapter(name));
    verbs_.adapters.back().lid = lid;
    nics.emplace_back().add_wire(std::move(wire));
  }
  NicSoft& of(int adapter) { return nics[static_cast<std::size_t>(adapter)]; }
  /// Executes some of the adapter's pending work. Returns true if there was any.
  bool progress(int adapter) {
    pass_on_rings(adapter);
    return of(adapter).progress();
  }
  bool progress() {
    bool any = false;
    for (int i = 0; i < static_cast<int>(nics.size()); ++i) any = progress(i) || any;
    return any;
  }

  /// Response timeout of a request; a silent peer is given up after eight timeouts.
  Duration answer_timeout = QueueSetup().answer_timeout;
  std::uint32_t piece_bytes = QueueSetup().piece_bytes;  ///< payload limit of a message
  std::deque<NicSoft> nics;

 private:
  /// Doorbell word of one queue. The register itself may be shared by several queues.
  struct Rings {
    const std::uint64_t* doorbell = nullptr;
    const std::uint32_t* record = nullptr;
    std::unique_ptr<std::uint64_t> word = std::make_unique<std::uint64_t>(0);
    std::uint64_t seen = 0;      // last value of the register
    std::uint32_t reported = 0;  // last index stored to `word`
    bool is_ready = false;
  };
  using Place = std::pair<int, std::uint32_t>;

  template <class Word>
  static Word load(const Word* from) {
    return std::atomic_ref<Word>(*const_cast<Word*>(from)).load(std::memory_order_acquire);
  }
  static std::uint32_t queue_of(std::uint64_t ring) {
    return device::queue::big_endian(static_cast<std::uint32_t>(ring >> 32)) >> 8;
  }
  /// Copies doorbell values from the register to each queue's own word. When rings follow each
  /// other closely, the register keeps only the last. So each ring makes the records of the other
  /// queues count too.
  void pass_on_rings(int adapter) {
    namespace dq = device::queue;
    const std::lock_guard lock(mutex_);
    for (auto& [place, rings] : rings_) {
      if (place.first != adapter || !rings.is_ready) continue;
      std::uint64_t now = load(rings.doorbell);
      if (now == rings.seen) continue;
      rings.seen = now;
      if (queue_of(now) != place.second) {
        const std::uint32_t recorded = dq::big_endian(load(rings.record + 1)) & 0xffff;
        if (recorded == rings.reported) continue;
        now = dq::big_endian(recorded << 8) | std::uint64_t{dq::big_endian(place.second << 8)}
                                                  << 32;
      }
      rings.reported = dq::big_endian(static_cast<std::uint32_t>(now)) >> 8;
      std::atomic_ref(*rings.word).store(now, std::memory_order_release);
    }
  }
  void add_queues() {
    verbs_.on_create = [this](const FakeVerbs::QueuePair& pair) {
      Rings rings;
      rings.doorbell = pair.doorbell;
      rings.record = pair.record;
      QueueSetup setup;
      setup.memory.ring = pair.ring;
      setup.memory.depth = pair.depth;
      setup.memory.record = pair.record;
      setup.memory.doorbell = rings.word.get();
      setup.memory.completions = pair.completions;
      setup.memory.receive_completions = pair.received;
      setup.memory.receive_count = pair.received_elements;
      setup.answer_timeout = answer_timeout;
      setup.piece_bytes = piece_bytes;
      const std::uint32_t number = of(pair.adapter).create_queue(setup).value();
      const std::lock_guard lock(mutex_);
      rings_.insert_or_assign({pair.adapter, number}, std::move(rings));
      return number;
    };
    verbs_.on_ready = [this](const FakeVerbs::QueuePair& pair) {
      expect_empty_receives(pair);
      const QueuePeer peer{0, address_of_(pair.remote_lid), pair.remote};
      expect(of(pair.adapter).connect(pair.number, peer), "connecting");
      const std::lock_guard lock(mutex_);
      Rings& rings = rings_.at(place_of(pair));
      rings.seen = load(rings.doorbell);
      rings.is_ready = true;
    };
    verbs_.on_error = [this](const FakeVerbs::QueuePair& pair) {
      expect(of(pair.adapter).to_error(pair.number), "ending");
    };
    verbs_.on_destroy = [this](const FakeVerbs::QueuePair& pair) {
      expect(of(pair.adapter).destroy_queue(pair.number), "destroying");
      const std::lock_guard lock(mutex_);
      rings_.erase(place_of(pair));
    };
  }
  /// Notes a violation unless each receive WQE is an empty list, as immediates need no room for
  /// data.
  void expect_empty_receives(const FakeVerbs::QueuePair& pair) {
    constexpr std::uint8_t kEmpty[16] = {0, 0, 0, 0, 0, 0, 1, 0};
    for (std::uint32_t i = 0; i < pair.receive_count; ++i) {
      if (std::memcmp(pair.receives + i * sizeof kEmpty, kEmpty, sizeof kEmpty) == 0) continue;
      verbs_.violations.push_back("receive " + std::to_string(i) + " has room for something");
    }
  }
  static Place place_of(const FakeVerbs::QueuePair& pair) { return {pair.adapter, pair.number}; }
  void expect(const Status& done, const char* what) {
    if (!done.ok()) verbs_.violations.push_back(std::string(what) + ": " + done.error().message());
  }

  FakeVerbs& verbs_;
  std::function<WireAddress(std::uint16_t lid)> address_of_;
  std::mutex mutex_;
  std::map<Place, Rings> rings_;
};

/// Drives each adapter by a thread of its own, until destroyed.
class RunningAdapters {
 public:
  explicit RunningAdapters(SoftAdapters& adapters) {
    for (int i = 0; i < static_cast<int>(adapters.nics.size()); ++i) {
      threads_.emplace_back(
          [&adapters, i](const std::stop_token& stop) { run(adapters, i, stop); });
    }
  }

 private:
  static void run(SoftAdapters& adapters, int which, const std::stop_token& stop) {
    constexpr int kYields = 100;
    for (int idle = 0; !stop.stop_requested();) {
      idle = adapters.progress(which) ? 0 : idle + 1;
      if (idle > kYields) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      } else if (idle > 0) {
        std::this_thread::yield();
      }
    }
  }
  std::vector<std::jthread> threads_;
};

/// Memory policy whose waits drive the adapters between two polls.
struct AdapterMemory : device::Memory {
  static inline std::atomic<SoftAdapters*> driven{nullptr};  // must be set while a thread waits
  static void relax() {
    device::Memory::relax();
    driven.load()->progress();
  }
};

}  // namespace oriel::net::test
