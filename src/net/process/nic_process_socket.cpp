// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_process_socket.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "net/process/nic_process_message.hpp"

namespace oriel::net {
namespace {

/// Room for the sender and two descriptors. A second descriptor, which nobody should send, is then
/// received and closed.
struct ControlBuffer {
  alignas(cmsghdr)
      std::array<std::byte, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(2 * sizeof(int))> bytes{};
};

void take_descriptors(const cmsghdr* at, NicMessage& message) {
  const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (std::size_t i = 0; i < count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
    OwnedFd owned(fd);
    message.cut = message.cut || message.descriptor.valid();
    message.lost_descriptor = message.lost_descriptor || !owned;
    message.descriptor = std::move(owned);
  }
}

pid_t sender_in(const cmsghdr* at) {
  ucred sender{};
  if (at->cmsg_len != CMSG_LEN(sizeof sender)) return 0;
  std::memcpy(&sender, CMSG_DATA(at), sizeof sender);
  return sender.pid;
}

Status wait_for(const OwnedFd& socket, short events, Deadline deadline, const char* what) {
  for (;;) {
    const Duration left = deadline.remaining(SteadyClock::instance().now());
    if (left == Duration::zero()) return Error(ErrorCode::timeout, what);
    pollfd entry{socket.get(), events, 0};
    const auto most = std::min<Duration>(left, std::chrono::seconds(1));
    const auto wait =
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(most).count()) + 1;
    const int ready = sys().poll(&entry, 1, wait);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_error("waiting for a software NIC's process");
  }
}

}  // namespace

Status show_senders(const OwnedFd& socket) {
  const int on = 1;
  if (sys().setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0) return {};
  return system_error("asking who sends by a unix socket");
}

Status send_nic_message(const OwnedFd& socket, ByteView message, const OwnedFd* descriptor,
                        Deadline deadline) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ControlBuffer control;
  if (descriptor != nullptr) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const at = CMSG_FIRSTHDR(&header);
    at->cmsg_level = SOL_SOCKET;
    at->cmsg_type = SCM_RIGHTS;
    at->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = descriptor->get();
    std::memcpy(CMSG_DATA(at), &fd, sizeof fd);
  }
  for (;;) {
    if (sys().sendmsg(socket.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
    if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS) {
      return system_error("sending to a software NIC's process");
    }
    ORIEL_CHECK(wait_for(socket, POLLOUT, deadline, "a software NIC's process takes no message"));
  }
}

Result<NicMessage> receive_nic_message(const OwnedFd& socket) {
  NicMessage message;
  message.bytes.resize(kNicMessageBytesMost);
  iovec part{message.bytes.data(), message.bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ControlBuffer control;
  header.msg_control = control.bytes.data();
  header.msg_controllen = control.bytes.size();
  const ssize_t got =
      sys().recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return NicMessage();
  if (got < 0 && errno != ECONNRESET) {
    return system_error("receiving from a software NIC's process");
  }
  message.bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  message.outcome = got > 0 ? NicMessage::Outcome::arrived : NicMessage::Outcome::closed;
  if (got < 0) return message;
  message.cut = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* at = CMSG_FIRSTHDR(&header); at != nullptr; at = CMSG_NXTHDR(&header, at)) {
    if (at->cmsg_level != SOL_SOCKET) continue;
    if (at->cmsg_type == SCM_RIGHTS) take_descriptors(at, message);
    if (at->cmsg_type == SCM_CREDENTIALS) message.sender = sender_in(at);
  }
  // The control buffer has room for a descriptor, so only this process's descriptor limit can be
  // the cause.
  if ((header.msg_flags & MSG_CTRUNC) != 0 && !message.descriptor.valid()) {
    message.lost_descriptor = true;
  }
  return message;
}

Status await_nic_message(const OwnedFd& socket, Deadline deadline) {
  return wait_for(socket, POLLIN, deadline, "a software NIC's process has not answered in time");
}

}  // namespace oriel::net
