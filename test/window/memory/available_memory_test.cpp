// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/available_memory.hpp"

#include <cerrno>
#include <string>

#include <catch2/catch.hpp>
#include <sys/mman.h>

#include "base/system_table.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"
#include "topo/sources/temporary_tree.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"

namespace oriel::window {
namespace {

/// A machine's files in a folder of their own.
class Machine {
 public:
  Machine& put(const std::string& path, const std::string& text) {
    tree_.file("/" + path, text);
    return *this;
  }
  Machine& memory(std::size_t available_kib, std::size_t swap_kib) {
    return put("proc/meminfo",
               "MemTotal:       99999999 kB\nMemFree:          1 kB\n"
               "MemAvailable:   " +
                   std::to_string(available_kib) +
                   " kB\n"
                   "SwapTotal:      88888888 kB\nSwapFree: " +
                   std::to_string(swap_kib) + " kB\n");
  }
  Status check(std::size_t bytes) const {
    return check_available_memory(bytes, topo::FileTree(tree_.root()));
  }
  bool has_memory(std::size_t bytes) const { return check(bytes).ok(); }
  std::string refusal(std::size_t bytes) const {
    const Status status = check(bytes);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code() == ErrorCode::system);
    CHECK(status.error().native().value == ENOMEM);
    return status.error().to_string();
  }

 private:
  topo::TemporaryTree tree_;
};

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an allocation beyond the machine's available memory is refused with the figures",
          "[req:1.19][req:1.38]") {
  Machine machine;
  CHECK(machine.has_memory(~std::size_t{0}));  // no source is known
  machine.memory(2048, 0);
  CHECK(machine.has_memory(2 * kMiB));
  const std::string text = machine.refusal(2 * kMiB + 1024);
  CHECK(has(text, "allocating 2098176 bytes"));
  CHECK(has(text, "2048 KiB of memory available and 0 KiB of swap"));
  machine.memory(2048, 1024);
  CHECK(machine.has_memory(3 * kMiB));
  CHECK_FALSE(machine.has_memory(4 * kMiB));
  for (const char* odd : {"", "MemAvailable", "MemAvailable: many kB", "MemAvailableX: 1 kB\n\n"}) {
    machine.put("proc/meminfo", odd);
    CHECK(machine.has_memory(4 * kMiB));
  }
}

TEST_CASE("limits of control groups count, also of those above", "[req:1.19][req:1.38]") {
  const std::string group = "sys/fs/cgroup/outer/inner/";
  Machine machine;
  machine.memory(1 << 20, 0).put("proc/self/cgroup", "0::/outer/inner\n");
  CHECK(machine.has_memory(64 * kMiB));
  machine.put(group + "memory.max", "max\n").put(group + "memory.current", "1000\n");
  CHECK(machine.has_memory(64 * kMiB));
  machine.put(group + "memory.max", "8388608\n").put(group + "memory.current", "4194304\n");
  CHECK(machine.has_memory(4 * kMiB));
  const std::string text = machine.refusal(4 * kMiB + 1);
  CHECK(has(text, "of the 8388608 bytes that the control group /outer/inner may have, 4194304"));
  // File cache pages are reclaimed first, so they count as free.
  machine.put(group + "memory.stat",
              "anon 5\ninactive_file 1048576\nactive_file 1048576\nfile_dirty 7\n");
  CHECK(machine.has_memory(6 * kMiB));
  CHECK_FALSE(machine.has_memory(6 * kMiB + 1));
  machine.put("sys/fs/cgroup/outer/memory.max", "3145728\n")
      .put("sys/fs/cgroup/outer/memory.current", "1048576\n");
  CHECK(machine.has_memory(2 * kMiB));
  CHECK(has(machine.refusal(3 * kMiB), "control group /outer may have"));
  machine.put("sys/fs/cgroup/outer/memory.current", "4194304\n");  // over its limit
  CHECK_FALSE(machine.has_memory(1));
}

TEST_CASE("a container's own limit is found where it sees its group as the root",
          "[req:1.19][req:1.38]") {
  for (const char* path : {"0::/\n", "0::/system/abc\n", "0::/../other\n"}) {
    CAPTURE(path);
    Machine machine;
    machine.put("proc/self/cgroup", path)
        .put("sys/fs/cgroup/memory.max", "4194304")
        .put("sys/fs/cgroup/memory.current", "0");
    CHECK(machine.has_memory(4 * kMiB));
    CHECK(has(machine.refusal(5 * kMiB), "control group / may have"));
  }
  Machine old;
  old.put("proc/self/cgroup", "5:cpu:/\n4:memory:/jobs/7\n0::/\n")
      .put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .put("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n")
      .put("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "4194304\n")
      .put("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "2097152\n")
      .put("sys/fs/cgroup/memory/jobs/7/memory.stat",
           "inactive_file 9\ntotal_inactive_file 1048576\n");
  CHECK(old.has_memory(3 * kMiB));
  CHECK(has(old.refusal(4 * kMiB), "control group /jobs/7 may have"));
}

TEST_CASE("memory that is not to be had is refused before any is taken", "[req:1.19][req:1.38]") {
  std::size_t bytes = std::size_t{1} << 30;  // doubled until so much is not available
  while (check_available_memory(bytes, topo::FileTree("/")).ok()) bytes *= 2;
  const auto before = test::process_state();
  const auto refused = host_memory().allocate(bytes);
  REQUIRE_FALSE(refused.ok());
  CHECK(has(refused.error().to_string(), "give the process more memory"));
  CHECK(test::process_state() == before);
  if (test::kSanitized) return;  // the thread sanitizer leaves too few addresses
  const auto made = host_memory().allocate(bytes, Backing::on_demand);
  REQUIRE(made.ok());
  CHECK(host_memory().free(*made).ok());
  CHECK(test::process_state() == before);
}

TEST_CASE("memfds cannot be made executable where the kernel knows that", "[req:1.19]") {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
  static bool required = false;        // false: unknown flag, as in older kernels
  static unsigned last = 0;
  required = GENERATE(true, false);
  SystemTable table = real_system_table();
  table.memfd_create = [](const char* name, unsigned flags) {
    last = flags;
    if (((flags & kNoExecSeal) != 0) == required) {
      return real_system_table().memfd_create(name, flags & ~kNoExecSeal);
    }
    errno = required ? EACCES : EINVAL;
    return -1;
  };
  const ScopedSystemTable scoped(table);
  const auto made = host_memory().allocate(4096);
  REQUIRE(made.ok());
  CHECK((last & ~kNoExecSeal) == (MFD_CLOEXEC | MFD_ALLOW_SEALING));
  static_cast<char*>(*made)[0] = 1;
  CHECK(host_memory().free(*made).ok());
}

}  // namespace oriel::window
