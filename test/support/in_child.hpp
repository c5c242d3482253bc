// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace oriel::test {

/// Returns the exit status of a forked child that ends with the result of `body`, without running
/// the exit handlers of the test's process. Returns -1 if a signal ended the child. An alarm ends a
/// child that hangs for a minute.
template <class Body>
int status_of_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// Runs `body` in a forked child. Throws if `body` has thrown or the child has died.
template <class Body>
void in_child(const Body& body) {
  const int status = status_of_child([&] {
    try {
      body();
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "forked child: %s\n", error.what());
      return 1;
    }
  });
  if (status != 0) throw std::runtime_error("the child");
}

}  // namespace oriel::test
