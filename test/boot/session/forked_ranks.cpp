// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/forked_ranks.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <stdexcept>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.hpp"
#include "support/process_state.hpp"

namespace oriel {
namespace {

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count <= 0) return;
    done += static_cast<std::size_t>(count);
  }
}

/// Waits until the library's threads have ended. The thread sanitizer ends a child at its first
/// thread if the parent had threads at the fork. The thread that served a test's last id may still
/// be ending.
void await_library_threads() {
#if defined(__SANITIZE_THREAD__)
  static_cast<void>(
      test::eventually([] { return !test::has_thread("oriel-"); }, std::chrono::seconds(2)));
#endif
}

}  // namespace

ForkedRanks::ForkedRanks(int count, const std::function<Status(int rank)>& body) {
  await_library_threads();
  for (int rank = 0; rank < count; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    OwnedFd reader(ends[0]);
    const OwnedFd writer(ends[1]);
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) {
      children_.clear();
      std::string result = "ok";
      try {
        const Status status = body(rank);
        if (!status.ok()) result = status.error().to_string();
      } catch (const std::exception& error) {
        result = std::string("exception: ") + error.what();
      }
      write_all(writer.get(), result);
      ::_exit(0);
    }
    children_.push_back({pid, std::move(reader)});
  }
}

ForkedRanks::~ForkedRanks() {
  for (const Child& child : children_) {
    if (child.pid < 0) continue;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }
}

void ForkedRanks::kill(int rank, int signal) {
  ::kill(pid(rank), signal);
}

std::vector<std::string> ForkedRanks::collect(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<std::string> results(children_.size());
  for (std::size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    bool open = true;
    while (open) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd ready{child.report.get(), POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) <= 0) {
        results[rank] = "<has not ended>";
        break;
      }
      std::array<char, 4096> buffer;
      const ssize_t count = ::read(child.report.get(), buffer.data(), buffer.size());
      open = count > 0;
      if (open) results[rank].append(buffer.data(), static_cast<std::size_t>(count));
    }
    if (open) continue;
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    child.pid = -1;
    if (WIFSIGNALED(status)) {
      results[rank] = "<killed by signal " + std::to_string(WTERMSIG(status)) + ">";
    } else if (results[rank].empty()) {
      results[rank] = "<ended without a word, status " + std::to_string(status) + ">";
    } else if (WEXITSTATUS(status) != 0) {  // a sanitizer's report at exit
      results[rank] =
          "<ended with " + std::to_string(WEXITSTATUS(status)) + " after: " + results[rank] + ">";
    }
  }
  return results;
}

std::vector<std::string> run_forked(int count, const std::function<Status(int rank)>& body,
                                    std::chrono::milliseconds timeout) {
  return ForkedRanks(count, body).collect(timeout);
}

}  // namespace oriel
