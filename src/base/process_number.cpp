// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/process_number.hpp"

#include <chrono>
#include <mutex>

#include <unistd.h>

#include "base/fork.hpp"
#include "base/system_table.hpp"

namespace oriel {
namespace {

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): spreads every input bit over the output.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t draw(pid_t pid) {
  std::uint64_t number = 0;
  const ssize_t got = sys().getrandom(&number, sizeof number, 0);
  if (got == static_cast<ssize_t>(sizeof number) && number != 0) return number;
  // Reached only if a sandbox forbids getrandom(). Time and pid still distinguish processes.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  number = mix(static_cast<std::uint64_t>(now)) ^ mix(static_cast<std::uint64_t>(pid) << 32);
  return number != 0 ? number : 1;
}

}  // namespace

std::uint64_t process_number() {
  static std::mutex mutex;
  static pid_t drawn_by = 0;
  static std::uint64_t number = 0;
  [[maybe_unused]] static const bool kept = [] {
    keep_free_in_children(ForkLock::process_number, mutex);
    return true;
  }();
  const std::lock_guard lock(mutex);
  const pid_t pid = ::getpid();
  if (drawn_by != pid) {
    number = draw(pid);
    drawn_by = pid;
  }
  return number;
}

}  // namespace oriel
