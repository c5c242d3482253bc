// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/api_ranks.hpp"

/// Ranks whose process may open only few descriptors.
namespace oriel::test {
namespace {

/// Limits this process to `extra` more descriptors; the limit cannot be raised.
void allow_more_descriptors(int extra) {
  const int highest = ::fcntl(0, F_DUPFD_CLOEXEC, 512);
  require(highest >= 0, "dup");
  for (int fd = ::dup(0); fd >= 0 && fd < highest; fd = ::dup(0)) {
  }
  const rlimit files{static_cast<rlim_t>(highest + 2 + extra),
                     static_cast<rlim_t>(highest + 2 + extra)};
  require(::setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit");
}

/// Starts a communicator while rank 1 has room for only `extra` descriptors.
void start_with_few_descriptors(TestRanks& test_ranks, bool has_another, int extra) {
  const Environment long_timeout(Variables{{"ORIEL_TIMEOUT", "60s"}});
  std::vector<Communicator> others;
  if (has_another) others.push_back(join(test_ranks));
  test_ranks.barrier();
  if (test_ranks.first() == 1) allow_more_descriptors(extra);
  must_fail(try_to_join(test_ranks), ErrorCode::system, {"rank 1", "RLIMIT_NOFILE"});
  test_ranks.barrier();
}

/// Starts more communicators, in threads, than the initial limit allows.
void start_many(TestRanks& test_ranks) {
  constexpr rlim_t kFew = 256;
  rlimit files{};
  require(::getrlimit(RLIMIT_NOFILE, &files) == 0, "getrlimit");
  if (files.rlim_max < 2048) return;  // the limit cannot be raised
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    files.rlim_cur = kFew;
    require(::setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit");
  }
  test_ranks.barrier();
  std::vector<Communicator> comms;
  for (int i = 0; i < 4; ++i) comms.push_back(join(test_ranks));
  std::vector<float> data(4, 1);
  for (Communicator& comm : comms) {
    must(comm.all_reduce({.input = data.data(), .output = data.data(), .count = data.size()}));
  }
  require(data[0] == 4096, "the sum");
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    require(::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > kFew, "the limit");
    // The application keeps the low descriptor numbers.
    const int own = ::dup(0);
    require(own >= 0 && own < static_cast<int>(kFew), fmt::format("descriptor {}", own));
  }
  test_ranks.barrier();
}

/// Starts ranks connected by libfabric; rank 1's process has room for only `extra` descriptors.
void start_with_fabric(TestRanks& test_ranks, int extra) {
  const Environment own(Variables{{"ORIEL_HOSTID", fmt::format("node{}", test_ranks.first())},
                                  {"ORIEL_WIRE", "fabric"},
                                  {"ORIEL_COLLECTIVE_TIMEOUT", "20s"}});
  if (test_ranks.first() == 1) allow_more_descriptors(extra);
  auto comm = try_to_join(test_ranks);
  test_ranks.barrier();
  if (!comm.ok()) {
    return require_words(comm.error().to_string(), {"rank 1", "RLIMIT_NOFILE"});
  }
  std::vector<float> data(100'000, 1);
  must(
      comm.value().all_reduce({.input = data.data(), .output = data.data(), .count = data.size()}));
  require(data[0] == static_cast<float>(test_ranks.size()), "the sum");
  test_ranks.barrier();
}

}  // namespace

TEST_CASE("a start fails by name, or has room for all connections of libfabric's", "[req:3.13]") {
  for (const int extra : {18, 24, 28, 32, 64}) {
    INFO("room for " << extra);
    check_all_ok(run_ranks(LaunchMode::processes, 4,
                           [&](TestRanks& test_ranks) { start_with_fabric(test_ranks, extra); }));
  }
}

TEST_CASE("a process whose communicators need more descriptors raises its soft limit",
          "[req:1.15]") {
  check_all_ok(run_ranks(LaunchMode::threads, 8, start_many));
}

TEST_CASE("if a rank has no descriptor for its start, all ranks get an error that names it",
          "[req:1.15]") {
  const bool has_another = GENERATE(true, false);
  // Without another communicator, the process has no descriptor in reserve.
  for (int extra = has_another ? 0 : 1; extra <= 4; ++extra) {
    INFO("room for " << extra << (has_another ? ", beside another communicator" : ""));
    check_all_ok(run_ranks(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
      start_with_few_descriptors(test_ranks, has_another, extra);
    }));
  }
}

}  // namespace oriel::test
