// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/tcp.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>
#include <linux/tcp.h>
#include <sys/uio.h>

#include "base/fork.hpp"
#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr int kBacklog = 4096;  // the kernel cuts it to net.core.somaxconn
constexpr std::size_t kMaxBuffers = 16;
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepPauseSeconds = 5;

Status set_option(int fd, int level, int option, int value, const char* name) {
  if (sys().setsockopt(fd, level, option, &value, sizeof value) != 0) {
    return system_error(fmt::format("setsockopt({})", name));
  }
  return {};
}

// Sets TCP_NODELAY and keep-alive. Keep-alive detects hosts that vanish without a reset: after 10 s
// without an answer, it sends 4 probes, 5 s apart. A stopped process is not affected, since its
// kernel answers.
Status tune(int fd) {
  ORIEL_CHECK(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  ORIEL_CHECK(set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  ORIEL_CHECK(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds, "TCP_KEEPIDLE"));
  ORIEL_CHECK(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepPauseSeconds, "TCP_KEEPINTVL"));
  return set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4, "TCP_KEEPCNT");
}

Result<OwnedFd> open_socket(int family) {
  OwnedFd fd(sys().socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return system_error("socket");
  keep_from_children(fd.get());
  return fd;
}

bool means_silent(int status) {
  return status == ETIMEDOUT || status == EHOSTUNREACH || status == ENETUNREACH ||
         status == ENETDOWN;
}

bool means_closed(int status) {
  return means_silent(status) || status == ECONNRESET || status == EPIPE || status == ENOTCONN ||
         status == ECONNABORTED;
}

IoOutcome closed_with(int status) {
  return {.closed = true, .silent = means_silent(status)};
}

int option_of(int fd, int option, int otherwise) {
  int value = 0;
  socklen_t length = sizeof value;
  return sys().getsockopt(fd, IPPROTO_TCP, option, &value, &length) == 0 ? value : otherwise;
}

}  // namespace

Result<Listener> listen_tcp(const SocketAddress& local) {
  ORIEL_TRY(OwnedFd fd, open_socket(local.family()));
  sockaddr_storage native{};
  const socklen_t length = local.to_native(native);
  if (sys().bind(fd.get(), reinterpret_cast<const sockaddr*>(&native), length) != 0) {
    Error error = system_error(fmt::format("bind to {}", local.to_string()));
    if (local.port() != 0 || error.native().value != EADDRINUSE) return error;
    return std::move(error).with_hint(
        "all ports of net.ipv4.ip_local_port_range are taken; closed connections keep theirs for a "
        "minute");
  }
  if (sys().listen(fd.get(), kBacklog) != 0) return system_error("listen");
  ORIEL_TRY(const SocketAddress bound, local_address(fd.get()));
  return Listener{std::move(fd), bound};
}

Result<OwnedFd> start_connect(const SocketAddress& remote) {
  ORIEL_TRY(OwnedFd fd, open_socket(remote.family()));
  ORIEL_CHECK(tune(fd.get()));
  sockaddr_storage native{};
  const socklen_t length = remote.to_native(native);
  const int status = sys().connect(fd.get(), reinterpret_cast<const sockaddr*>(&native), length);
  // After EINTR the connection attempt continues, as after EINPROGRESS.
  if (status != 0 && errno != EINPROGRESS && errno != EINTR) {
    return system_error(fmt::format("connect to {}", remote.to_string()));
  }
  return fd;
}

Status connect_outcome(int fd, const SocketAddress& remote) {
  int status = 0;
  socklen_t length = sizeof status;
  if (sys().getsockopt(fd, SOL_SOCKET, SO_ERROR, &status, &length) != 0) {
    return system_error("getsockopt(SO_ERROR)");
  }
  if (status == 0) return {};
  return system_error(fmt::format("connect to {}", remote.to_string()), status);
}

Result<OwnedFd> accept_one(int listener_fd) {
  OwnedFd fd(sys().accept4(listener_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    // Linux also returns errors of the connection that was waiting; those are not failures here.
    const bool exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted || errno == EBADF || errno == EINVAL) return system_error("accept");
    return OwnedFd();
  }
  keep_from_children(fd.get());
  ORIEL_CHECK(tune(fd.get()));
  return fd;
}

Result<SocketAddress> local_address(int fd) {
  sockaddr_storage native{};
  socklen_t length = sizeof native;
  if (sys().getsockname(fd, reinterpret_cast<sockaddr*>(&native), &length) != 0) {
    return system_error("getsockname");
  }
  return SocketAddress::from_native(native, length);
}

Result<IoOutcome> read_some(int fd, std::span<std::byte> out) {
  iovec buffer{out.data(), out.size()};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  const ssize_t count = sys().recvmsg(fd, &message, MSG_DONTWAIT);
  if (count > 0) return IoOutcome{.bytes = static_cast<std::size_t>(count)};
  if (count == 0) return IoOutcome{.closed = true};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return IoOutcome{.would_block = true};
  }
  if (means_closed(errno)) return closed_with(errno);
  return system_error("recvmsg");
}

Result<IoOutcome> write_some(int fd, std::span<const ByteView> buffers) {
  std::array<iovec, kMaxBuffers> vectors{};
  const std::size_t count = std::min(buffers.size(), vectors.size());
  for (std::size_t i = 0; i < count; ++i) {
    // const_cast is safe: sendmsg() does not write to the buffers, but iovec has no const form.
    vectors[i] = {const_cast<std::byte*>(buffers[i].data()), buffers[i].size()};
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const ssize_t sent = sys().sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return IoOutcome{.bytes = static_cast<std::size_t>(sent)};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return IoOutcome{.would_block = true};
  }
  if (means_closed(errno)) return closed_with(errno);
  return system_error("sendmsg");
}

// A live host answers the first keep-alive probe after the idle time, or the next one if a packet
// was lost. A connection to a dead host times out four probe intervals after its idle time. If
// another connection broke at the same time, it received its last packet at most the idle time
// later. So it has received nothing for four intervals, longer than the limit below.
bool has_answered(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (sys().getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  const auto idle_ms = option_of(fd, TCP_KEEPIDLE, kKeepIdleSeconds) * std::int64_t{1000};
  const auto pause_ms = option_of(fd, TCP_KEEPINTVL, kKeepPauseSeconds) * std::int64_t{1000};
  return std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) < idle_ms + pause_ms * 3 / 2;
}

std::size_t unsent_bytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (sys().getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  const bool has_field =
      length >= offsetof(tcp_info, tcpi_notsent_bytes) + sizeof info.tcpi_notsent_bytes;
  return has_field ? info.tcpi_notsent_bytes : 0;
}

}  // namespace oriel::boot
