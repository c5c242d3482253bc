// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.hpp"

#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/free_descriptors.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"

// Since Linux 6.3; older C libraries do not define it.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace oriel {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Checks RLIMIT_FSIZE, which applies to memfds: growing a memfd beyond it kills the process
/// (SIGXFSZ).
Status check_file_limit(std::size_t bytes) {
  rlimit files{};
  if (sys().getrlimit(RLIMIT_FSIZE, &files) != 0 || files.rlim_cur >= bytes) return {};
  return Error(ErrorCode::system,
               fmt::format("a memfd of {} bytes is larger than the {} bytes that files of this "
                           "process may have",
                           bytes, files.rlim_cur))
      .with_native(NativeDomain::os_errno, EFBIG)
      .with_hint("raise the limit of file sizes (ulimit -f)");
}

}  // namespace

Result<OwnedFd> make_sealed_memfd(std::size_t bytes) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // A machine may require memfds that cannot be made executable (vm.memfd_noexec=2). Older kernels
  // reject the flag.
  const auto make = [&] {
    OwnedFd made(sys().memfd_create("oriel", kFlags | MFD_NOEXEC_SEAL));
    if (!made && errno == EINVAL) made = OwnedFd(sys().memfd_create("oriel", kFlags));
    return made;
  };
  OwnedFd fd = make();
  // Each allocation takes a descriptor, and their number is unknown here.
  constexpr std::uint64_t kMoreToCome = 64;
  if (!fd && errno == EMFILE) {
    const bool raised = raise_descriptor_limit(kMoreToCome).has_value();
    errno = EMFILE;
    if (raised) fd = make();
  }
  if (!fd) return system_error("memfd_create");
  ORIEL_CHECK(check_file_limit(bytes));
  if (sys().ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(fmt::format("sizing a memfd to {} bytes", bytes));
  }
  if (sys().fcntl_int(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_error("sealing a memfd");
  return fd;
}

Status check_sealed_memfd(const OwnedFd& fd, std::size_t bytes) {
  struct stat info {};
  if (sys().fstat(fd.get(), &info) != 0) return system_error("fstat of a peer's memory");
  if (!S_ISREG(info.st_mode)) {
    return Error(ErrorCode::remote, "a peer's memory handle is not a memfd");
  }
  const int seals = sys().fcntl_int(fd.get(), F_GET_SEALS, 0);
  if (seals < 0 && errno == EINVAL) {
    return Error(ErrorCode::remote, "a peer's memory handle is not a memfd");
  }
  if (seals < 0) return system_error("reading the seals of a peer's memory");
  if ((seals & kSeals) != kSeals) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer's memfd has seals {:#x}, but needs {:#x}", seals, kSeals));
  }
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) != bytes) {
    return Error(
        ErrorCode::remote,
        fmt::format("a peer's memfd has {} bytes, but {} were announced", info.st_size, bytes));
  }
  return {};
}

SharedMapping::~SharedMapping() {
  if (!bytes_.empty()) static_cast<void>(sys().munmap(bytes_.data(), bytes_.size()));
}

Result<SharedMapping> SharedMapping::map(const OwnedFd& fd, std::size_t bytes) {
  void* const at = sys().mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return system_error(fmt::format("mapping {} bytes of a memfd", bytes));
  return SharedMapping(std::span(static_cast<std::byte*>(at), bytes));
}

}  // namespace oriel
