// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/fork.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <new>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace oriel {
namespace {

// Counts forks. The child's handler runs in a copy of one thread. Any lock but those of ForkLock
// may be held by a thread that does not exist there. So the handler uses only lock-free atomics and
// direct system calls. It avoids sys(): a test's table may need more.
std::atomic<std::uint32_t> forks{0};

// Inode of the marked socket at each descriptor number; 0 for none. If the number's present inode
// differs, the number has been closed and reused. Pages are allocated on demand and never freed.
constexpr std::size_t kPageNumbers = 1024;
constexpr std::size_t kPages = 1024;  // covers the default of fs.nr_open
using Page = std::array<std::atomic<std::uint64_t>, kPageNumbers>;
std::array<std::atomic<Page*>, kPages> pages{};
static_assert(std::atomic<Page*>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Returns the inode of a socket; 0 for anything else.
std::uint64_t socket_inode(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISSOCK(facts.st_mode) ? facts.st_ino : 0;
}

/// Creates a descriptor to replace a marked socket; returns -1 if it cannot.
int make_substitute(int marked) {
  const int made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made >= 0) return made;
  // Usually no number is free. Closing this socket frees its number, which the eventfd then takes.
  static_cast<void>(::close(marked));
  return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void give_up_sockets() {
  int substitute = -1;
  for (std::size_t i = 0; i < kPages; ++i) {
    Page* const page = pages[i].load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (std::size_t j = 0; j < kPageNumbers; ++j) {
      const std::uint64_t marked = (*page)[j].exchange(0, std::memory_order_relaxed);
      const int fd = static_cast<int>(i * kPageNumbers + j);
      if (marked == 0 || socket_inode(fd) != marked) continue;
      if (substitute < 0) substitute = make_substitute(fd);
      if (substitute == fd) {
        substitute = -1;  // stays here; the next socket gets a new one
      } else if (substitute < 0 || ::dup3(substitute, fd, O_CLOEXEC) < 0) {
        static_cast<void>(::close(fd));
      }
    }
  }
  if (substitute >= 0) static_cast<void>(::close(substitute));
}

// Indexed by ForkLock; null if not registered.
std::array<std::atomic<std::mutex*>, kForkLocks> locks{};
// Locks that this thread holds while it forks; `locks` may change meanwhile.
constinit thread_local std::array<std::mutex*, kForkLocks> held{};

void before_fork() {
  for (std::size_t i = 0; i < locks.size(); ++i) {
    held[i] = locks[i].load(std::memory_order_acquire);
    if (held[i] != nullptr) held[i]->lock();
  }
}

void after_fork() {
  for (std::mutex*& mutex : held) {
    if (std::mutex* const locked = std::exchange(mutex, nullptr)) locked->unlock();
  }
}

void in_child() {
  const int before = errno;
  after_fork();
  forks.fetch_add(1, std::memory_order_relaxed);
  give_up_sockets();
  errno = before;
}

// Registers the handlers. On unload, the C library removes them, since it knows their library. If
// registration fails (out of memory), socket copies stay open and forks are not counted.
void watch_forks() {
  [[maybe_unused]] static const int status = ::pthread_atfork(before_fork, after_fork, in_child);
}

}  // namespace

std::uint32_t fork_count() {
  watch_forks();
  return forks.load(std::memory_order_relaxed);
}

void keep_free_in_children(ForkLock which, std::mutex& mutex) {
  watch_forks();
  locks[static_cast<std::size_t>(which)].store(&mutex, std::memory_order_release);
}

void keep_from_children(int socket) {
  watch_forks();
  const auto number = static_cast<std::size_t>(socket);
  if (socket < 0 || number >= kPages * kPageNumbers) return;
  std::atomic<Page*>& place = pages[number / kPageNumbers];
  Page* page = place.load(std::memory_order_acquire);
  if (page == nullptr) {
    auto* const fresh = new (std::nothrow) Page{};
    if (fresh == nullptr) return;
    if (place.compare_exchange_strong(page, fresh, std::memory_order_acq_rel)) {
      page = fresh;
    } else {
      delete fresh;
    }
  }
  (*page)[number % kPageNumbers].store(socket_inode(socket), std::memory_order_relaxed);
}

}  // namespace oriel
