// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "run/output.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace oriel::run {
namespace {

constexpr std::size_t kLongestLine = 64 << 10;

}  // namespace

Result<TaggedOutput::Ends> TaggedOutput::add(int rank) {
  Ends ends;
  for (const int target : {STDOUT_FILENO, STDERR_FILENO}) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return system_error("making a pipe for a rank's output");
    Pipe pipe{rank, target, OwnedFd(fds[0]), {}};
    (target == STDOUT_FILENO ? ends.out : ends.err) = OwnedFd(fds[1]);
    // Only the read end is non-blocking; the rank's end must block, as programs expect.
    if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return system_error("setting up a pipe");
    pipes_.push_back(std::move(pipe));
  }
  return ends;
}

void TaggedOutput::watch(std::vector<pollfd>& fds) const {
  for (const Pipe& pipe : pipes_) fds.push_back({pipe.source.get(), POLLIN, 0});
}

void TaggedOutput::pump() {
  std::erase_if(pipes_, [](Pipe& pipe) { return !drain(pipe); });
}

// Copies the lines that have arrived. Returns false once every write end is closed.
bool TaggedOutput::drain(Pipe& pipe) {
  char buffer[16 << 10];
  for (;;) {
    const ssize_t got = ::read(pipe.source.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) {
      if (!pipe.line.empty()) write_line(pipe, pipe.line);
      return false;
    }
    pipe.line.append(buffer, static_cast<std::size_t>(got));
    std::size_t start = 0;
    for (std::size_t end; (end = pipe.line.find('\n', start)) != std::string::npos; start = end + 1)
      write_line(pipe, std::string_view(pipe.line).substr(start, end - start));
    pipe.line.erase(0, start);
    if (pipe.line.size() >= kLongestLine) {
      write_line(pipe, pipe.line);
      pipe.line.clear();
    }
  }
}

void TaggedOutput::flush() {
  for (const Pipe& pipe : pipes_)
    if (!pipe.line.empty()) write_line(pipe, pipe.line);
  pipes_.clear();
}

void TaggedOutput::write_line(const Pipe& pipe, std::string_view line) {
  const std::string whole = fmt::format("[{}] {}\n", pipe.rank, line);
  std::size_t done = 0;
  while (done < whole.size()) {
    const ssize_t put = ::write(pipe.target, whole.data() + done, whole.size() - done);
    if (put < 0 && errno != EINTR) return;  // drops the line
    if (put > 0) done += static_cast<std::size_t>(put);
  }
}

}  // namespace oriel::run
