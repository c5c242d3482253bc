// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/free_descriptors.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <catch2/catch.hpp>
#include <sys/resource.h>
#include <sys/single_threaded.h>

namespace {

using oriel::grow_descriptor_table;

// Returns the capacity of this process's descriptor table in the kernel.
long table_size() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long size = 0;
    if (word == "FDSize:" && status >> size) return size;
  }
  return -1;
}

long open_descriptors() {
  using Iterator = std::filesystem::directory_iterator;
  return std::distance(Iterator("/proc/self/fd"), Iterator());
}

TEST_CASE("a process of one thread gets room for descriptors and keeps none", "[req:1.11]") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (!__libc_single_threaded || limit.rlim_cur < 512) {
    WARN("skipped: this process has threads, or may not have 512 descriptors");
    return;
  }
  const long before = open_descriptors();
  grow_descriptor_table();
  CHECK(table_size() >= 512);
  CHECK(open_descriptors() == before);
}

}  // namespace
