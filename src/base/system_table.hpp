// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <ifaddrs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "oriel/error.hpp"

namespace oriel {

/// Operating-system calls that can fail, behind pointers that a test can replace. Each has the
/// prototype and the meaning of the call of its name. Each fails with errno set and returns -1
/// (mmap and mremap: MAP_FAILED).
struct SystemTable {
  int (*close)(int fd);
  int (*memfd_create)(const char* name, unsigned flags);
  int (*ftruncate)(int fd, off_t length);
  int (*fcntl_int)(int fd, int command, int argument);
  int (*fstat)(int fd, struct stat* out);
  void* (*mmap)(void* address, std::size_t length, int protection, int flags, int fd, off_t offset);
  int (*munmap)(void* address, std::size_t length);
  int (*madvise)(void* address, std::size_t length, int advice);
  /// Called with MREMAP_FIXED: `new_address` is the destination.
  void* (*mremap)(void* address, std::size_t length, std::size_t new_length, int flags,
                  void* new_address);
  ssize_t (*getrandom)(void* out, std::size_t bytes, unsigned flags);
  int (*socket)(int domain, int type, int protocol);
  int (*bind)(int fd, const sockaddr* address, socklen_t length);
  int (*listen)(int fd, int backlog);
  int (*accept4)(int fd, sockaddr* address, socklen_t* length, int flags);
  int (*connect)(int fd, const sockaddr* address, socklen_t length);
  int (*getsockname)(int fd, sockaddr* address, socklen_t* length);
  int (*getsockopt)(int fd, int level, int name, void* value, socklen_t* length);
  int (*setsockopt)(int fd, int level, int name, const void* value, socklen_t length);
  ssize_t (*sendmsg)(int fd, const msghdr* message, int flags);
  ssize_t (*recvmsg)(int fd, msghdr* message, int flags);
  int (*poll)(pollfd* fds, nfds_t count, int timeout_ms);
  int (*epoll_create1)(int flags);
  int (*epoll_ctl)(int epoll_fd, int operation, int fd, epoll_event* event);
  int (*epoll_wait)(int epoll_fd, epoll_event* events, int capacity, int timeout_ms);
  int (*eventfd)(unsigned initial, int flags);
  int (*eventfd_read)(int fd, eventfd_t* value);
  int (*eventfd_write)(int fd, eventfd_t value);
  /// The result is passed to freeifaddrs(3), which cannot fail.
  int (*getifaddrs)(ifaddrs** out);
  int (*pidfd_open)(pid_t pid, unsigned flags);
  int (*pidfd_send_signal)(int pidfd, int signal, siginfo_t* info, unsigned flags);
  int (*shutdown)(int fd, int how);
  int (*socketpair)(int domain, int type, int protocol, int* fds);
  /// posix_spawn(3), but a failure returns -1 and sets errno.
  int (*spawn)(pid_t* out, const char* path, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* arguments, char* const* variables);
  /// pthread_create(3), but a failure returns -1 and sets errno.
  int (*pthread_create)(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*),
                        void* argument);
  pid_t (*waitpid)(pid_t pid, int* status, int options);
  ssize_t (*process_vm_readv)(pid_t pid, const iovec* here, unsigned long here_count,
                              const iovec* there, unsigned long there_count, unsigned long flags);
  long (*sysconf)(int name);
  int (*getrlimit)(int resource, rlimit* out);
  int (*setrlimit)(int resource, const rlimit* limits);
  int (*sched_getaffinity)(pid_t thread, std::size_t bytes, cpu_set_t* out);
  int (*sched_setaffinity)(pid_t thread, std::size_t bytes, const cpu_set_t* cpus);
  /// `nodes` is a mask of `bits` - 1 bits, also in the calls below.
  int (*mbind)(void* address, std::size_t length, int mode, const unsigned long* nodes,
               unsigned long bits, unsigned flags);
  int (*get_mempolicy)(int* mode, unsigned long* nodes, unsigned long bits, void* address,
                       unsigned long flags);
  int (*set_mempolicy)(int mode, const unsigned long* nodes, unsigned long bits);
};

/// Members of SystemTable, for code that wraps all of them: X(member). Formatted by hand.
// clang-format off
#define ORIEL_SYSTEM_CALLS(X) \
  X(close) X(memfd_create) X(ftruncate) X(fcntl_int) X(fstat) X(mmap) \
  X(munmap) X(madvise) X(mremap) X(getrandom) X(socket) X(bind) \
  X(listen) X(accept4) X(connect) X(getsockname) X(getsockopt) X(setsockopt) \
  X(sendmsg) X(recvmsg) X(poll) X(epoll_create1) X(epoll_ctl) X(epoll_wait) \
  X(eventfd) X(eventfd_read) X(eventfd_write) X(getifaddrs) X(pidfd_open) \
  X(pidfd_send_signal) X(shutdown) X(socketpair) X(spawn) X(pthread_create) X(waitpid) \
  X(process_vm_readv) X(sysconf) \
  X(getrlimit) X(setrlimit) \
  X(sched_getaffinity) X(sched_setaffinity) X(mbind) X(get_mempolicy) X(set_mempolicy)
// clang-format on

/// Returns the calls of the operating system.
const SystemTable& real_system_table();

/// Returns the table in force: the real one unless a test has replaced it.
const SystemTable& sys();

/// Puts `table` in force for the process while alive. For tests; the table must outlive this
/// object.
class ScopedSystemTable {
 public:
  explicit ScopedSystemTable(const SystemTable& table);
  ~ScopedSystemTable();
  ScopedSystemTable(const ScopedSystemTable&) = delete;
  ScopedSystemTable& operator=(const ScopedSystemTable&) = delete;

 private:
  const SystemTable* previous_;
};

/// Returns the error of a call that has just failed. Reads errno, so call it before anything else.
Error system_error(const std::string& what);
/// Returns the error for a known errno value `status`.
Error system_error(const std::string& what, int status);

}  // namespace oriel
