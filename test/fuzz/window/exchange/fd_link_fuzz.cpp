// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "base/system_table.hpp"
#include "fuzz/input.hpp"
#include "window/exchange/fd_link.hpp"

using namespace oriel;
using namespace oriel::window;

namespace {

/// A socket whose events come from the input. Each takes a byte for the event, one for the number
/// of descriptors, one for the number of bytes, then the bytes.
struct Socket {
  ByteView left;
  std::set<int> open;  // descriptors that this process owns
  int next = 0;

  std::uint8_t take() {
    if (left.empty()) return 0;
    const auto byte = std::to_integer<std::uint8_t>(left.front());
    left = left.subspan(1);
    return byte;
  }
};
Socket the_socket;

int add_descriptor() {
  const int fd = the_socket.next++;
  expect(the_socket.open.insert(fd).second);
  return fd;
}

ssize_t fake_recvmsg(int, msghdr* message, int) {
  Socket& socket = the_socket;
  if (socket.left.size() < 3) {
    errno = socket.left.empty() ? EAGAIN : ECONNRESET;
    return -1;
  }
  const std::uint8_t what = socket.take();
  if (what % 16 == 15) {
    errno = EAGAIN;
    return -1;
  }
  const std::size_t fds = socket.take();
  const std::size_t bytes = std::min<std::size_t>(socket.take(), socket.left.size());
  const std::size_t taken = std::min(bytes, message->msg_iov->iov_len);
  std::memcpy(message->msg_iov->iov_base, socket.left.data(), taken);
  socket.left = socket.left.subspan(bytes);
  message->msg_flags = taken < bytes ? MSG_TRUNC : 0;
  // Closes descriptors that do not fit and sets MSG_CTRUNC, as the kernel does.
  const std::size_t capacity = message->msg_controllen < CMSG_LEN(sizeof(int))
                                   ? 0
                                   : (message->msg_controllen - CMSG_LEN(0)) / sizeof(int);
  const std::size_t given = std::min({fds, capacity, std::size_t{64}});
  if (given < fds || what % 16 == 1) message->msg_flags |= MSG_CTRUNC;
  if (given == 0) {
    message->msg_controllen = 0;
    return static_cast<ssize_t>(taken);
  }
  message->msg_controllen = CMSG_LEN(given * sizeof(int));
  auto* const control = static_cast<cmsghdr*>(message->msg_control);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(given * sizeof(int));
  for (std::size_t i = 0; i < given; ++i) {
    const int fd = add_descriptor();
    std::memcpy(CMSG_DATA(control) + i * sizeof fd, &fd, sizeof fd);
  }
  return static_cast<ssize_t>(taken);
}

ssize_t fake_sendmsg(int, const msghdr* message, int) {
  if (the_socket.left.size() % 5 == 4) {
    errno = EAGAIN;
    return -1;
  }
  return static_cast<ssize_t>(message->msg_iov->iov_len);
}

int fake_close(int fd) {
  expect(the_socket.open.erase(fd) == 1);
  return 0;
}

/// Duplicates a standard descriptor from number `least` on, because an OwnedFd keeps no standard
/// descriptor. Fails for descriptor 1.
int fake_fcntl(int fd, int, int least) {
  if (fd == 1) {
    errno = EMFILE;
    return -1;
  }
  the_socket.next = std::max(the_socket.next, least);
  return add_descriptor();
}

const SystemTable& fake_table() {
  static const SystemTable table = [] {
    SystemTable made = real_system_table();
    made.recvmsg = fake_recvmsg;
    made.sendmsg = fake_sendmsg;
    made.close = fake_close;
    made.fcntl_int = fake_fcntl;
    return made;
  }();
  return table;
}

}  // namespace

// The halves of the first byte are the numbers of descriptors to send and to receive. The second
// byte selects whether descriptor numbers start at 0. The peer's input completes the exchange or is
// refused. No descriptor leaks or is closed twice.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const ScopedSystemTable scope(fake_table());
  the_socket = Socket{view(data + 2, size - 2), {}, 5 + 2 * 80};
  {
    const std::size_t outgoing_count = data[0] % 16 == 15 ? 70 : data[0] % 16;
    const std::size_t expected = data[0] / 16 == 15 ? 70 : data[0] / 16;
    std::vector<OwnedFd> outgoing;
    for (std::size_t i = 0; i < outgoing_count; ++i) outgoing.emplace_back(add_descriptor());
    FdLink link(OwnedFd(add_descriptor()), 1);
    the_socket.next = data[1] % 8 == 0 ? 0 : the_socket.next;
    link.begin(7, outgoing, expected);
    for (int i = 0; i < 64; ++i) {
      const std::size_t before = the_socket.left.size();
      if (!link.advance().ok()) break;
      if (link.done()) {
        expect(link.take_arrived().size() == expected);
        break;
      }
      if (the_socket.left.size() == before && before == 0) break;
    }
  }
  expect(the_socket.open.empty());
  return 0;
}
