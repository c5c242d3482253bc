// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/placement.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>

#include <linux/mempolicy.h>
#include <sched.h>

#include "base/log.hpp"
#include "base/system_table.hpp"

namespace oriel::topo {
namespace {

constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
// Exceeds what any kernel is built for (1024 nodes); get_mempolicy() fails if given too few bits.
constexpr std::size_t kNodeBits = 4096;
using NodeMask = std::array<unsigned long, kNodeBits / kWordBits>;
// Exceeds the C library's masks of 1024 bits; kernels can be built for more.
constexpr std::size_t kCpuBits = 8192;
constexpr std::size_t kCpuBitsMost = std::size_t{1} << 20;

template <typename Words>
std::vector<int> numbers_of(const Words& words) {
  std::vector<int> numbers;
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::size_t bit = 0; words[word] >> bit != 0; ++bit) {
      if ((words[word] >> bit & 1) != 0)
        numbers.push_back(static_cast<int>(word * kWordBits + bit));
      if (bit + 1 == kWordBits) break;
    }
  }
  return numbers;
}

template <typename Words>
void set_bit(Words& words, int number) {
  words[static_cast<std::size_t>(number) / kWordBits] |=
      1UL << static_cast<std::size_t>(number) % kWordBits;
}

/// The kernel reads one bit less than its argument says.
constexpr unsigned long kNodeBitsArgument = kNodeBits + 1;

bool mask_of(int node, NodeMask& mask) {
  if (node < 0 || static_cast<std::size_t>(node) >= kNodeBits) return false;
  set_bit(mask, node);
  return true;
}

/// Logs the refusal once; later refusals have the same cause.
void log_refusal(std::atomic<bool>& reported, const char* what, int status) {
  if (!log_enabled(LogLevel::info) || reported.exchange(true)) return;
  Log().info("{} was refused (errno {}); it stays as it is", what, status);
}

std::atomic<bool> has_logged_threads{false};
std::atomic<bool> has_logged_memory{false};

}  // namespace

std::optional<std::vector<int>> cpus_of_this_thread() {
  for (std::size_t bits = kCpuBits; bits <= kCpuBitsMost; bits *= 2) {
    std::vector<unsigned long> words(bits / kWordBits);
    auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
    if (sys().sched_getaffinity(0, words.size() * sizeof words[0], set) == 0) {
      return numbers_of(words);
    }
    if (errno != EINVAL) break;  // EINVAL: there are more processors
  }
  return std::nullopt;
}

std::optional<std::vector<int>> memory_nodes_of_this_thread() {
  NodeMask mask{};
  if (sys().get_mempolicy(nullptr, mask.data(), kNodeBits, nullptr, MPOL_F_MEMS_ALLOWED) != 0) {
    return std::nullopt;
  }
  return numbers_of(mask);
}

bool has_memory_policy() {
  int mode = MPOL_DEFAULT;
  return sys().get_mempolicy(&mode, nullptr, 0, nullptr, 0) != 0 || mode != MPOL_DEFAULT;
}

void run_this_thread_on(const std::vector<int>& cpus) noexcept {
  try {
    if (cpus.empty() || cpus_of_this_thread() == cpus) return;
    std::vector<unsigned long> words(static_cast<std::size_t>(cpus.back()) / kWordBits + 1);
    for (const int cpu : cpus) set_bit(words, cpu);
    const auto* const set = reinterpret_cast<const cpu_set_t*>(words.data());
    if (sys().sched_setaffinity(0, words.size() * sizeof words[0], set) != 0) {
      log_refusal(has_logged_threads, "keeping a thread near its GPU", errno);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): it runs where it is
  }
}

void prefer_memory_node(void* at, std::size_t bytes, int node) {
  NodeMask mask{};
  if (!mask_of(node, mask)) return;
  if (sys().mbind(at, bytes, MPOL_PREFERRED, mask.data(), kNodeBitsArgument, 0) != 0) {
    log_refusal(has_logged_memory, "taking host memory from the nearest NUMA node", errno);
  }
}

MemoryNodeScope::MemoryNodeScope(int node) {
  NodeMask mask{};
  if (!mask_of(node, mask) || has_memory_policy()) return;
  changed_ = sys().set_mempolicy(MPOL_PREFERRED, mask.data(), kNodeBitsArgument) == 0;
  if (!changed_) {
    log_refusal(has_logged_memory, "taking host memory from the nearest NUMA node", errno);
  }
}

MemoryNodeScope::~MemoryNodeScope() {
  if (!changed_) return;
  if (sys().set_mempolicy(MPOL_DEFAULT, nullptr, 0) == 0) return;
  Log().warn(
      "the memory policy of a thread could not be restored (errno {}); hint: the thread prefers "
      "memory near the GPU until it calls set_mempolicy(2)",
      errno);
}

}  // namespace oriel::topo
