// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <system_error>
#include <thread>

#include <dirent.h>

/// Counts a process's resources as the kernel sees them, for tests that nothing leaks.
namespace oriel::test {

/// Counts open file descriptors.
inline std::size_t count_fds() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  std::size_t count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count - 3;  // ".", ".." and the directory's own
}

inline std::size_t count_threads() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(tasks, std::filesystem::directory_iterator{}));
}

/// Returns true if there is a thread whose name begins with `name`. A thread sets its name a moment
/// after its start.
inline bool has_thread(const std::string& name) {
  std::error_code gone;  // a thread may end meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::string found;
    std::ifstream file(task.path() / "comm");
    if (std::getline(file, found) && found.starts_with(name)) return true;
  }
  return false;
}

/// Waits until `condition()` is true. Returns false after `timeout`.
template <typename Condition>
bool eventually(const Condition& condition,
                std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Counts mappings that Oriel can have made: memfds of ours, and reserved address ranges of at
/// least 1 GiB without access. Other mappings come and go with malloc and the stacks of threads.
/// The sanitizers keep their heaps in reserved addresses too, below where mmap places ours.
inline std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  std::size_t reserved = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:oriel") != std::string::npos) ++count;
    std::size_t begin = 0;
    std::size_t end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%zx-%zx %4s", &begin, &end, access) == 3 &&
        begin >= 0x7e8000000000 && access[0] == '-' && end - begin >= (std::size_t{1} << 30)) {
      ++reserved;
    }
  }
  return count + reserved;
}

struct ProcessState {
  std::size_t fds = 0;
  std::size_t mappings = 0;
  auto operator<=>(const ProcessState&) const = default;
};

inline ProcessState process_state() {
  return {count_fds(), count_mappings()};
}

inline std::ostream& operator<<(std::ostream& out, const ProcessState& state) {
  return out << state.fds << " fds, " << state.mappings << " mappings";
}

}  // namespace oriel::test
