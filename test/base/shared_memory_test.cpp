// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.hpp"

#include <catch2/catch.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include "support/in_child.hpp"

using namespace oriel;
using oriel::test::status_of_child;

TEST_CASE("memory beyond the limit of file sizes is an error, not the process's end",
          "[promise:7]") {
  const int status = status_of_child([] {
    const rlimit most{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &most) != 0) return 1;
    if (!make_sealed_memfd(1 << 20).ok()) return 2;
    const auto larger = make_sealed_memfd(2 << 20);
    if (larger.ok()) return 3;
    return larger.error().to_string().find("ulimit -f") == std::string::npos ? 4 : 0;
  });
  CHECK(status == 0);
}

TEST_CASE("no descriptor of ours takes the place of a standard one that was closed",
          "[promise:7]") {
  const int status = status_of_child([] {
    ::close(STDIN_FILENO);
    ::close(STDERR_FILENO);
    const auto memory = make_sealed_memfd(4096);
    if (!memory.ok()) return 1;
    if (memory.value().get() <= STDERR_FILENO) return 2;
    // The descriptor is close-on-exec, and the standard descriptors are still closed.
    if (::fcntl(memory.value().get(), F_GETFD) != FD_CLOEXEC) return 3;
    return ::fcntl(STDIN_FILENO, F_GETFD) < 0 && ::fcntl(STDERR_FILENO, F_GETFD) < 0 ? 0 : 4;
  });
  CHECK(status == 0);
}

TEST_CASE("a standard descriptor's place that cannot be left is an error", "[promise:7]") {
  const int status = status_of_child([] {
    ::close(STDIN_FILENO);
    const rlimit most{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &most) != 0) return 1;
    const auto memory = make_sealed_memfd(4096);
    if (memory.ok()) return 2;
    return ::fcntl(STDIN_FILENO, F_GETFD) < 0 ? 0 : 3;
  });
  CHECK(status == 0);
}
