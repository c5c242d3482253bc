// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/try.hpp"
#include "common/process.hpp"

namespace oriel::perf {
namespace {

constexpr std::uint32_t kLongestMessage = 1 << 20;
// Longest poll(). A signal between the check of received_signal and poll() is noticed this late.
constexpr int kSliceMs = 100;

volatile std::sig_atomic_t received_signal = 0;

void note_signal(int signal) {
  received_signal = signal;
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

Error hung_up() {
  return Error(ErrorCode::remote, "the other side closed the connection");
}

Status receive_exactly(int fd, void* out, std::size_t bytes, Deadline deadline) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    ORIEL_CHECK(wait_ready(fd, POLLIN, deadline));
    const ssize_t got = ::recv(fd, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return hung_up();
    if (got < 0 && errno != EAGAIN && errno != EINTR) return system_error("receiving");
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }
  return {};
}

}  // namespace

void end_waits_on_signals() {
  set_handlers(note_signal);
}
void default_signals() {
  set_handlers(SIG_DFL);
}
int signal_received() {
  return received_signal;
}

Status wait_ready(int fd, short events, Deadline deadline) {
  for (;;) {
    if (received_signal != 0)
      return Error(ErrorCode::aborted,
                   fmt::format("interrupted by {}", tools::signal_name(received_signal)));
    const TimePoint now = SteadyClock::instance().now();
    if (deadline.expired(now)) return Error(ErrorCode::timeout, "no answer in time");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(now)).count();
    pollfd one{fd, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, kSliceMs)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_error("waiting for a message");
  }
}

Status Channel::send(const Json& message, Deadline deadline) const {
  const std::string text = message.dump();
  const auto length = static_cast<std::uint32_t>(text.size());
  std::string whole(reinterpret_cast<const char*>(&length), sizeof length);
  whole += text;
  std::size_t done = 0;
  while (done < whole.size()) {
    ORIEL_CHECK(wait_ready(socket_.get(), POLLOUT, deadline));
    const ssize_t put = ::send(socket_.get(), whole.data() + done, whole.size() - done,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && (errno == EPIPE || errno == ECONNRESET)) return hung_up();
    if (put < 0 && errno != EAGAIN && errno != EINTR) return system_error("sending");
    if (put > 0) done += static_cast<std::size_t>(put);
  }
  return {};
}

Result<Json> Channel::receive(Deadline deadline) const {
  std::uint32_t length = 0;
  ORIEL_CHECK(receive_exactly(socket_.get(), &length, sizeof length, deadline));
  if (length > kLongestMessage)
    return Error(ErrorCode::remote, fmt::format("a message of {} bytes is too long", length));
  std::string text(length, '\0');
  ORIEL_CHECK(receive_exactly(socket_.get(), text.data(), length, deadline));
  Json message = Json::parse(text, nullptr, false);
  if (!message.is_object()) return Error(ErrorCode::remote, "a message is not a JSON object");
  return message;
}

}  // namespace oriel::perf
