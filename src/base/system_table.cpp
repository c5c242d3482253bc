// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/system_table.hpp"

#include <atomic>
#include <cerrno>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace oriel {
namespace {

const SystemTable kRealTable = {
    .close = ::close,
    .memfd_create = ::memfd_create,
    .ftruncate = ::ftruncate,
    .fcntl_int = [](int fd, int command, int argument) { return ::fcntl(fd, command, argument); },
    .fstat = ::fstat,
    .mmap = ::mmap,
    .munmap = ::munmap,
    .madvise = ::madvise,
    .mremap =
        [](void* address, std::size_t length, std::size_t new_length, int flags,
           void* new_address) { return ::mremap(address, length, new_length, flags, new_address); },
    .getrandom = ::getrandom,
    .socket = ::socket,
    .bind = ::bind,
    .listen = ::listen,
    .accept4 = ::accept4,
    .connect = ::connect,
    .getsockname = ::getsockname,
    .getsockopt = ::getsockopt,
    .setsockopt = ::setsockopt,
    .sendmsg = ::sendmsg,
    .recvmsg = ::recvmsg,
    .poll = ::poll,
    .epoll_create1 = ::epoll_create1,
    .epoll_ctl = ::epoll_ctl,
    .epoll_wait = ::epoll_wait,
    .eventfd = [](unsigned initial, int flags) { return ::eventfd(initial, flags); },
    .eventfd_read = ::eventfd_read,
    .eventfd_write = ::eventfd_write,
    .getifaddrs = ::getifaddrs,
    // glibc has pidfd_open only since 2.36 (Debian 12).
    .pidfd_open =
        [](pid_t pid, unsigned flags) {
          return static_cast<int>(::syscall(SYS_pidfd_open, pid, flags));
        },
    .pidfd_send_signal =
        [](int pidfd, int signal, siginfo_t* info, unsigned flags) {
          return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, signal, info, flags));
        },
    .shutdown = ::shutdown,
    .socketpair = ::socketpair,
    .spawn =
        [](pid_t* out, const char* path, const posix_spawn_file_actions_t* actions,
           const posix_spawnattr_t* attributes, char* const* arguments, char* const* variables) {
          errno = ::posix_spawn(out, path, actions, attributes, arguments, variables);
          return errno == 0 ? 0 : -1;
        },
    .pthread_create =
        [](pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
          errno = ::pthread_create(out, attributes, body, argument);
          return errno == 0 ? 0 : -1;
        },
    .waitpid = ::waitpid,
    .process_vm_readv = ::process_vm_readv,
    .sysconf = ::sysconf,
    // Converts the resource: the C library's C++ declarations take an enumeration.
    .getrlimit = [](int resource, rlimit* out) -> int {
      return ::getrlimit(static_cast<__rlimit_resource_t>(resource), out);
    },
    .setrlimit = [](int resource, const rlimit* limits) -> int {
      return ::setrlimit(static_cast<__rlimit_resource_t>(resource), limits);
    },
    .sched_getaffinity = ::sched_getaffinity,
    .sched_setaffinity = ::sched_setaffinity,
    // Direct system calls: the wrappers are in libnuma, which may be missing.
    .mbind =
        [](void* address, std::size_t length, int mode, const unsigned long* nodes,
           unsigned long bits, unsigned flags) {
          return static_cast<int>(::syscall(SYS_mbind, address, length, mode, nodes, bits, flags));
        },
    .get_mempolicy =
        [](int* mode, unsigned long* nodes, unsigned long bits, void* address,
           unsigned long flags) {
          return static_cast<int>(::syscall(SYS_get_mempolicy, mode, nodes, bits, address, flags));
        },
    .set_mempolicy =
        [](int mode, const unsigned long* nodes, unsigned long bits) {
          return static_cast<int>(::syscall(SYS_set_mempolicy, mode, nodes, bits));
        },
};

#define ORIEL_DETAIL_NAME(member) #member,
constexpr const char* kMembers[] = {ORIEL_SYSTEM_CALLS(ORIEL_DETAIL_NAME)};
#undef ORIEL_DETAIL_NAME
static_assert(sizeof(SystemTable) == std::size(kMembers) * sizeof(void (*)()),
              "ORIEL_SYSTEM_CALLS names every member of SystemTable");

std::atomic<const SystemTable*> table_in_force{&kRealTable};

}  // namespace

const SystemTable& real_system_table() {
  return kRealTable;
}

const SystemTable& sys() {
  return *table_in_force.load(std::memory_order_acquire);
}

ScopedSystemTable::ScopedSystemTable(const SystemTable& table)
    : previous_(table_in_force.exchange(&table, std::memory_order_acq_rel)) {}

ScopedSystemTable::~ScopedSystemTable() {
  table_in_force.store(previous_, std::memory_order_release);
}

Error system_error(const std::string& what) {
  return system_error(what, errno);
}

Error system_error(const std::string& what, int status) {
  Error error =
      Error(ErrorCode::system, what + " failed").with_native(NativeDomain::os_errno, status);
  if (status == EMFILE) {
    rlimit files{};
    const bool known = sys().getrlimit(RLIMIT_NOFILE, &files) == 0;
    const std::string now = known ? ", now " + std::to_string(files.rlim_cur) : "";
    return std::move(error).with_hint("raise RLIMIT_NOFILE of this process (ulimit -n" + now +
                                      "), or have fewer communicators and allocations");
  }
  if (status == ENFILE) {
    return std::move(error).with_hint("raise this machine's limit of open files (fs.file-max)");
  }
  return error;
}

}  // namespace oriel
