// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/system_table.hpp"

/// Fakes the kernel's NUMA calls for processors and memory policies of threads. Requests are
/// recorded, not carried out by the kernel. get_mempolicy() answers what set_mempolicy() has set.
namespace oriel::test {

class NumaSystem {
 public:
  using Numbers = std::vector<int>;
  struct Placement {
    pid_t thread;
    Numbers cpus;
    bool operator==(const Placement&) const = default;
  };
  struct Preference {
    void* at;
    std::size_t bytes;
    int mode;
    Numbers nodes;
    unsigned flags;
  };
  struct Policy {
    int mode;
    Numbers nodes;
    bool operator==(const Policy&) const = default;
  };

  // Answers of the fake kernel.
  Numbers cpus{0, 1, 2, 3, 4, 5, 6, 7};
  Numbers memory_nodes{0, 1};
  Policy policy{MPOL_DEFAULT, {}};
  std::size_t cpu_bits = 1024;   ///< smaller masks are refused
  std::size_t node_bits = 1024;  ///< smaller node masks are refused
  int cpu_status = 0;            ///< errno of sched_setaffinity; 0: succeeds
  int memory_status = 0;         ///< errno of mbind and set_mempolicy
  int asking_status = 0;         ///< errno of sched_getaffinity and get_mempolicy
  bool real_cpus = false;        ///< sched_getaffinity asks the real kernel
  // Requests that were made.
  std::vector<Placement> placements;
  std::vector<Preference> preferences;
  std::vector<Policy> policies;
  int questions = 0;
  mutable std::mutex mutex;

  NumaSystem() : scoped_(kept(make_table())) {}
  ~NumaSystem() { current() = nullptr; }
  NumaSystem(const NumaSystem&) = delete;
  NumaSystem& operator=(const NumaSystem&) = delete;

  std::vector<Placement> seen_placements() const {
    const std::lock_guard lock(mutex);
    return placements;
  }

 private:
  static NumaSystem*& current() {
    static NumaSystem* system = nullptr;
    return system;
  }
  static int refuse(int status) {
    errno = status;
    return -1;
  }
  static Numbers numbers_of(const void* mask, std::size_t bytes) {
    Numbers numbers;
    const auto* const words = static_cast<const unsigned char*>(mask);
    for (std::size_t bit = 0; bit < bytes * CHAR_BIT; ++bit) {
      if ((words[bit / CHAR_BIT] >> bit % CHAR_BIT & 1) != 0) {
        numbers.push_back(static_cast<int>(bit));
      }
    }
    return numbers;
  }
  static void put(const Numbers& numbers, void* mask, std::size_t bytes) {
    std::memset(mask, 0, bytes);
    auto* const words = static_cast<unsigned char*>(mask);
    for (const int number : numbers) {
      const auto bit = static_cast<std::size_t>(number);
      words[bit / CHAR_BIT] = static_cast<unsigned char>(words[bit / CHAR_BIT] | 1U << bit % 8);
    }
  }

  int get_cpus(std::size_t bytes, cpu_set_t* out) {
    ++questions;
    if (asking_status != 0) return refuse(asking_status);
    if (real_cpus) return real_system_table().sched_getaffinity(0, bytes, out);
    if (bytes * CHAR_BIT < cpu_bits) return refuse(EINVAL);
    put(cpus, out, bytes);
    return 0;
  }
  int set_cpus(pid_t thread, std::size_t bytes, const cpu_set_t* wanted) {
    if (thread == 0) thread = static_cast<pid_t>(::syscall(SYS_gettid));
    placements.push_back({thread, numbers_of(wanted, bytes)});
    return cpu_status != 0 ? refuse(cpu_status) : 0;
  }
  int prefer(void* at, std::size_t bytes, int mode, const unsigned long* nodes, unsigned long bits,
             unsigned flags) {
    preferences.push_back({at, bytes, mode, numbers_of(nodes, (bits - 1) / CHAR_BIT), flags});
    return memory_status != 0 ? refuse(memory_status) : 0;
  }
  int get_policy(int* mode, unsigned long* nodes, unsigned long bits, unsigned long flags) {
    ++questions;
    if (asking_status != 0) return refuse(asking_status);
    if (nodes != nullptr && bits < node_bits) return refuse(EINVAL);
    const bool allowed = flags == MPOL_F_MEMS_ALLOWED;
    if (mode != nullptr) *mode = policy.mode;
    if (nodes != nullptr) put(allowed ? memory_nodes : policy.nodes, nodes, bits / CHAR_BIT);
    return 0;
  }
  int set_policy(int mode, const unsigned long* nodes, unsigned long bits) {
    Policy wanted{mode, nodes != nullptr ? numbers_of(nodes, (bits - 1) / CHAR_BIT) : Numbers()};
    policies.push_back(wanted);
    if (memory_status != 0) return refuse(memory_status);
    policy = wanted;
    return 0;
  }

  /// Keeps tables for ever: a thread of the library that is just ending may still read its table.
  static const SystemTable& kept(const SystemTable& table) {
    static auto* const tables = new std::deque<SystemTable>;
    return tables->emplace_back(table);
  }
  SystemTable make_table() {
    current() = this;
    SystemTable table = real_system_table();
    table.sched_getaffinity = [](pid_t, std::size_t bytes, cpu_set_t* out) {
      const std::lock_guard lock(current()->mutex);
      return current()->get_cpus(bytes, out);
    };
    table.sched_setaffinity = [](pid_t thread, std::size_t bytes, const cpu_set_t* wanted) {
      const std::lock_guard lock(current()->mutex);
      return current()->set_cpus(thread, bytes, wanted);
    };
    table.mbind = [](void* at, std::size_t bytes, int mode, const unsigned long* nodes,
                     unsigned long bits, unsigned flags) {
      const std::lock_guard lock(current()->mutex);
      return current()->prefer(at, bytes, mode, nodes, bits, flags);
    };
    table.get_mempolicy = [](int* mode, unsigned long* nodes, unsigned long bits, void*,
                             unsigned long flags) {
      const std::lock_guard lock(current()->mutex);
      return current()->get_policy(mode, nodes, bits, flags);
    };
    table.set_mempolicy = [](int mode, const unsigned long* nodes, unsigned long bits) {
      const std::lock_guard lock(current()->mutex);
      return current()->set_policy(mode, nodes, bits);
    };
    return table;
  }

  ScopedSystemTable scoped_;
};

}  // namespace oriel::test
