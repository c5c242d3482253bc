// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf/channel.hpp"
#include "perf/launcher_environment.hpp"
#include "perf/options.hpp"
#include "perf/report/report.hpp"
#include "perf/report/results.hpp"
#include "perf/report/statistics.hpp"
#include "perf/shared_barrier.hpp"

using namespace oriel;
using namespace oriel::perf;

namespace {

Options parse(std::vector<std::string> words) {
  words.insert(words.begin(), {"oriel-perf", "all_reduce"});
  std::vector<char*> arguments;
  for (std::string& one : words) arguments.push_back(one.data());
  auto parsed = parse_options(static_cast<int>(arguments.size()), arguments.data());
  REQUIRE(std::holds_alternative<Options>(parsed));
  return std::get<Options>(parsed);
}

std::pair<Channel, Channel> channel_pair() {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {Channel(OwnedFd(fds[0])), Channel(OwnedFd(fds[1]))};
}

/// Returns the text that arrives at `reader` while `say` runs with standard error on `writer`.
template <class Say>
std::string received(const OwnedFd& reader, const OwnedFd& writer, const Say& say) {
  const OwnedFd before(::dup(STDERR_FILENO));
  ::dup2(writer.get(), STDERR_FILENO);
  say();
  ::dup2(before.get(), STDERR_FILENO);
  // A terminal passes text on with a short delay.
  std::string all;
  pollfd ready{reader.get(), POLLIN, 0};
  while (::poll(&ready, 1, 200) == 1) {
    char text[256];
    const ssize_t got = ::read(reader.get(), text, sizeof text);
    if (got <= 0) break;
    all.append(text, static_cast<std::size_t>(got));
  }
  return all;
}

}  // namespace

TEST_CASE("a long run says on a terminal how far it has come, and takes the line away",
          "[req:1.35]") {
  const OwnedFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK));
  REQUIRE(terminal.get() >= 0);
  REQUIRE(::grantpt(terminal.get()) == 0);
  REQUIRE(::unlockpt(terminal.get()) == 0);
  const OwnedFd line(::open(::ptsname(terminal.get()), O_RDWR | O_NOCTTY));
  REQUIRE(line.get() >= 0);
  const auto two_of_four = [](std::chrono::milliseconds timeout) {
    Progress progress(4, timeout);
    progress.step("8 B");
    progress.step("16 B");
  };
  CHECK(received(terminal, line, [&] { two_of_four(std::chrono::milliseconds(0)); }) ==
        "\r\033[K 25 %, 0 s: 8 B\r\033[K 50 %, 0 s: 16 B\r\033[K");
  CHECK(received(terminal, line, [&] { two_of_four(std::chrono::seconds(10)); }).empty());

  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  const OwnedFd out(pipe[0]);
  const OwnedFd in(pipe[1]);
  CHECK(received(out, in, [&] { two_of_four(std::chrono::milliseconds(0)); }).empty());
}

TEST_CASE("sizes are read as nccl-tests reads them", "[req:1.35]") {
  CHECK(*parse_bytes("8") == 8);
  CHECK(*parse_bytes("4K") == 4096);
  CHECK(*parse_bytes("1m") == 1 << 20);
  CHECK(*parse_bytes("2GiB") == std::size_t{2} << 30);
  CHECK(*parse_bytes("1T") == std::size_t{1} << 40);
  CHECK(*parse_bytes("16TiB") == std::size_t{1} << 44);
  for (const char* bad : {"", "x", "-1", "4Q", "1.5K", "4K ", "T"}) {
    const auto parsed = parse_bytes(bad);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().message() ==
          "'" + std::string(bad) + "' is not a size such as 8, 4K, 1M, 1G or 1T");
  }
  for (const char* large : {"17T", "99999999999G", "99999999999999999999999"}) {
    const auto parsed = parse_bytes(large);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().message() ==
          "'" + std::string(large) + "' is too large: sizes go up to 16T");
  }
}

TEST_CASE("sizes of a range grow by the factor or step that is given, lists are taken as they are",
          "[req:1.35]") {
  CHECK(parse({"-b", "8", "-e", "64", "-f", "2"}).sizes == std::vector<std::size_t>{8, 16, 32, 64});
  CHECK(parse({"-b", "8", "-e", "20", "-i", "4"}).sizes == std::vector<std::size_t>{8, 12, 16, 20});
  CHECK(parse({"--sizes", "3,1K"}).sizes == std::vector<std::size_t>{3, 1024});
  CHECK(parse({"--counts", "1000003"}).counts == std::vector<std::size_t>{1000003});
  const Options both = parse({"--sizes", "8", "--counts", "7"});
  CHECK(both.sizes.size() + both.counts.size() == 2);
  CHECK(parse({}).sizes.front() == 8);
  CHECK(parse({}).sizes.back() == std::size_t{64} << 20);
}

TEST_CASE("types, operations and placements have nccl-tests' names and ours", "[req:1.35]") {
  const Options some = parse({"-d", "half,bf16,f8e4m3", "-o", "max,mulsum"});
  CHECK(some.types == std::vector<DataType>{DataType::f16, DataType::bf16, DataType::e4m3});
  CHECK(some.ops == std::vector<ReduceOp>{ReduceOp::max, ReduceOp::premul_sum});
  CHECK(parse({"-d", "all", "-o", "all"}).types.size() == 12);
  CHECK(parse({"-d", "all", "-o", "all"}).ops.size() == 6);
  CHECK(parse({}).placements.size() == 2);
  CHECK(parse({"--in-place"}).placements == std::vector<Placement>{Placement::in_place});
  CHECK(parse({"--out-of-place"}).placements == std::vector<Placement>{Placement::out_of_place});
}

TEST_CASE("registration is set by -R or --register, for the other library by --against-register",
          "[req:1.35]") {
  CHECK(parse({}).ours.registration == Registration::both);
  CHECK(parse({"-R", "0"}).ours.registration == Registration::none);
  CHECK(parse({"-R", "2"}).ours.registration == Registration::both);
  CHECK(parse({"-R", "0", "--register", "in"}).ours.registration == Registration::in);
  const Options two = parse({"--against", "x.so", "--against-register", "none"});
  CHECK(two.ours.registration == Registration::both);
  CHECK(two.against->registration == Registration::none);
  CHECK(two.rounds == 9);
}

TEST_CASE("buffer sets exceed the cache for small sizes and are bounded", "[req:1.35]") {
  const Options options;
  CHECK(rotation(options, 8) == 8);
  CHECK(rotation(options, 16 << 20) == 5);
  CHECK(rotation(options, std::size_t{1} << 30) == 1);
  CHECK(rotation(options, 0) == 1);
}

TEST_CASE("medians, percentiles and bootstrap intervals of known samples are right", "[req:1.35]") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  CHECK(percentile(hundred, 0.99) == 99);
  CHECK(percentile({5}, 0.99) == 5);
  CHECK(percentile({1, 2, 3}, 1.0) == 3);
  const Interval same = bootstrap_median({2, 2, 2, 2});
  CHECK(same.low == 2);
  CHECK(same.high == 2);
  const Interval wide = bootstrap_median({1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8});
  CHECK(wide.low >= 1);
  CHECK(wide.low < 1.3);
  CHECK(wide.high > 1.5);
  CHECK(wide.high <= 1.8);
}

TEST_CASE("bandwidths of each collective are computed as in nccl-tests", "[req:1.35]") {
  CHECK(algorithm_bandwidth(1'000'000, 10) == Approx(100));
  CHECK(bus_bandwidth(1'000'000, 10, 4) == Approx(150));
  CHECK(bus_bandwidth(1'000'000, 10, 1) == 0);
  for (const Collective half : {Collective::all_gather, Collective::reduce_scatter,
                                Collective::all_to_all, Collective::gather, Collective::scatter}) {
    CHECK(bus_bandwidth(1'000'000, 10, 4, half) == Approx(75));
  }
  for (const Collective whole : {Collective::reduce, Collective::broadcast, kSendReceive}) {
    CHECK(bus_bandwidth(1'000'000, 10, 4, whole) == Approx(100));
  }
}

TEST_CASE("messages arrive whole; end of file, a timeout and malformed bytes are errors",
          "[req:1.35]") {
  auto [a, b] = channel_pair();
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds(100)); };
  const std::string long_text(500'000, 'x');
  std::thread writer([&a] {
    static_cast<void>(
        a.send({{"text", std::string(500'000, 'x')}}, Deadline::after(std::chrono::seconds(10))));
  });
  const auto message = b.receive(Deadline::after(std::chrono::seconds(10)));
  writer.join();
  REQUIRE(message.ok());
  CHECK(message->at("text") == long_text);
  CHECK(b.receive(soon()).error().code() == ErrorCode::timeout);
  const std::uint32_t huge = 0xffffffff;
  REQUIRE(write(a.fd(), &huge, 4) == 4);
  CHECK(b.receive(soon()).error().code() == ErrorCode::remote);
  a.close();
  CHECK(b.receive(soon()).error().code() == ErrorCode::remote);
  CHECK_FALSE(b.send({}, soon()).ok());
}

TEST_CASE("the ranks' barrier waits for all and gives up in time", "[req:1.35]") {
  auto barrier = SharedBarrier::create(2);
  REQUIRE(barrier.ok());
  const pid_t child = fork();
  if (child == 0) {
    bool good = true;
    for (int i = 0; i < 100; ++i)
      good = good && barrier->wait(Deadline::after(std::chrono::seconds(10))).ok();
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < 100; ++i)
    REQUIRE(barrier->wait(Deadline::after(std::chrono::seconds(10))).ok());
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(barrier->wait(Deadline::after(std::chrono::milliseconds(50))).error().code() ==
        ErrorCode::timeout);
}

TEST_CASE("a launcher's variables give rank, ranks and address; without them there is none",
          "[req:1.35]") {
  const auto found_with = [](const std::vector<std::pair<std::string, std::string>>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    const auto found = find_launcher();
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    return found;
  };
  CHECK_FALSE(found_with({})->has_value());
  const LauncherEnvironment torchrun = **found_with({{"RANK", "3"},
                                                     {"WORLD_SIZE", "8"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"LOCAL_WORLD_SIZE", "2"},
                                                     {"MASTER_ADDR", "node0"},
                                                     {"MASTER_PORT", "29500"},
                                                     {"TORCHELASTIC_RUN_ID", "x"}});
  CHECK(torchrun.rank == 3);
  CHECK(torchrun.ranks == 8);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.local_ranks == 2);
  CHECK(torchrun.master_address == "node0");
  CHECK(torchrun.master_port == 29500);
  CHECK(torchrun.port_in_use);
  const LauncherEnvironment open_mpi = **found_with({{"OMPI_COMM_WORLD_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK(open_mpi.rank == 1);
  CHECK(open_mpi.master_address.empty());
  CHECK((*found_with({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}))->ranks == 4);  // MPICH
  CHECK((*found_with({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}}))
            ->local_rank == 0);
  CHECK_FALSE(found_with({{"RANK", "9"}, {"WORLD_SIZE", "2"}}).ok());
  CHECK_FALSE(found_with({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).ok());
}
