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

// The child's handler runs in a copy of one thread, where any lock may be held by a thread that is
// not there, but for those of ForkLock: atomics that need no lock, and system calls. These are not
// those of the table, which a test may have replaced with something that needs more.
std::atomic<std::uint32_t> forks{0};

// The inode of the socket that was marked at each number; 0 for none. A number whose inode is
// another one by now has been closed, and is somebody else's. Pages are made when first needed and
// never freed.
constexpr std::size_t kPageNumbers = 1024;
constexpr std::size_t kPages = 1024;  // as many numbers as fs.nr_open allows by default
using Page = std::array<std::atomic<std::uint64_t>, kPageNumbers>;
std::array<std::atomic<Page*>, kPages> pages{};
static_assert(std::atomic<Page*>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// 0 for what is no socket.
std::uint64_t socket_inode(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISSOCK(facts.st_mode) ? facts.st_ino : 0;
}

/// Something to put in a socket's place; -1 if there is nothing.
int make_substitute(int marked) {
  const int made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made >= 0) return made;
  // For want of numbers, as a rule: this one makes room, and is the one that is taken then.
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
        substitute = -1;  // it stays here; the next one finds room or makes it
      } else if (substitute < 0 || ::dup3(substitute, fd, O_CLOEXEC) < 0) {
        static_cast<void>(::close(fd));
      }
    }
  }
  if (substitute >= 0) static_cast<void>(::close(substitute));
}

// By ForkLock; null as long as there is none.
std::array<std::atomic<std::mutex*>, kForkLocks> locks{};
// What this thread holds while it forks: one may be added meanwhile.
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

// If the library is unloaded the C library forgets the handler, which it knows by the library. A
// failure is want of memory: then copies stay open, and what forks is not told apart.
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
