// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/shared_memory.hpp"
#include "net/process/nic_process_ring.hpp"
#include "net/process/nic_process_socket.hpp"
#include "net/queue/syndrome.hpp"
#include "net/soft/gpu_pair.hpp"
#include "support/cuda/fault_cuda.hpp"

// Process that copies for software NICs (3.9), on a model of the driver. It is a thread of this
// process where calls are to fail, and a program of its own where it is to die.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::seconds;

namespace {

Deadline soon() {
  return Deadline::after(seconds(20));
}

/// Runs the model's streams until the engine has nothing in flight. Returns true if the engine has
/// not failed.
bool finish(LateModel& model, CudaCopyEngine& engine) {
  const Deadline due = soon();
  while (engine.flush()) {
    model.run_streams(4);
    std::this_thread::yield();
    REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
  }
  return !engine.has_failed();
}

struct Moving {
  explicit Moving(std::size_t bytes, std::uint32_t slot_bytes = 128 << 10)
      : server(0), memory(0, bytes) {
    REQUIRE(server.process->show(memory.data(), memory.bytes, memory.handle()).ok());
    engine.emplace(NicProcess::open_stream(server.process, 8, slot_bytes).value(), 8);
  }
  NicServerThread server;
  ShareableGpuMemory memory;
  std::optional<CudaCopyEngine> engine;
};

/// Client that may send arbitrary messages.
struct RawClient {
  RawClient() {
    auto [own, other] = nic_sockets();
    socket = std::move(own);
    thread = std::thread([this, end = std::move(other)]() mutable {
      NicServer server(std::move(end));
      ended = server.run();
    });
  }
  ~RawClient() {
    socket.reset();
    thread.join();
  }
  NicAnswer send(ByteView message, const OwnedFd* descriptor) {
    REQUIRE(send_nic_message(socket, message, descriptor, soon()).ok());
    REQUIRE(await_nic_message(socket, soon()).ok());
    const auto got = receive_nic_message(socket);
    REQUIRE(got.ok());
    auto answer = decode_nic_answer(got->bytes);
    REQUIRE(answer.ok());
    return answer.value();
  }
  NicAnswer send(const NicRequest& request, const OwnedFd* descriptor = nullptr) {
    const Bytes message = encode(request);
    return send(message, descriptor);
  }
  void send_hello() {
    nic_request::Hello hello;
    hello.gpu = uuid_of(0);
    const OwnedFd wake_event(::eventfd(0, EFD_CLOEXEC));
    REQUIRE_FALSE(send(hello, &wake_event).failed);
  }
  OwnedFd socket;
  Status ended;
  std::thread thread;
};

}  // namespace

TEST_CASE("stores and copies of every length, aligned or not, change what they should",
          "[req:3.9]") {
  LateModel model(1);
  Moving moving(2 << 20);
  std::mt19937_64 random(3);
  Bytes expected(moving.memory.bytes);
  std::generate(expected.begin(), expected.end(), [&] { return static_cast<std::byte>(random()); });
  std::memcpy(moving.memory.data(), expected.data(), expected.size());
  std::vector<std::size_t> lengths = {4095, 4096, 32767, 32768, 32769, 65535, 65536, 131072};
  for (std::size_t length = 1; length < 40; ++length) lengths.push_back(length);
  for (const std::size_t length : lengths) {
    INFO(length << " bytes");
    Bytes fresh(length);
    std::generate(fresh.begin(), fresh.end(), [&] { return static_cast<std::byte>(random()); });
    const std::size_t at = random() % (expected.size() / 2 - length);
    MoveTicket ticket = 0;
    REQUIRE(moving.engine->store(moving.memory.data() + at, fresh, ticket) == length);
    std::copy(fresh.begin(), fresh.end(), expected.begin() + static_cast<long>(at));
    const std::size_t to = expected.size() / 2 + random() % (expected.size() / 2 - length);
    REQUIRE(
        moving.engine->copy(moving.memory.data() + to, moving.memory.data() + at, length, ticket));
    std::copy_n(expected.begin() + static_cast<long>(at), length,
                expected.begin() + static_cast<long>(to));
    REQUIRE(finish(model, *moving.engine));
    CHECK(moving.engine->is_done(ticket));
    CHECK(std::memcmp(moving.memory.data(), expected.data(), expected.size()) == 0);
  }
  // Copies more than the pinned memory for copies within a GPU holds (256 KiB).
  MoveTicket ticket = 0;
  const std::size_t half = expected.size() / 2;
  REQUIRE(
      moving.engine->copy(moving.memory.data() + half, moving.memory.data() + 1, half - 1, ticket));
  std::copy_n(expected.begin() + 1, half - 1, expected.begin() + static_cast<long>(half));
  REQUIRE(finish(model, *moving.engine));
  CHECK(std::memcmp(moving.memory.data(), expected.data(), expected.size()) == 0);
  moving.server.process->hide(moving.memory.data());
}

TEST_CASE("more steps than the ring has room for wait for their turn", "[req:3.9]") {
  LateModel model(1);
  Moving moving(2 << 20);
  int refused = 0;
  const Deadline due = soon();
  for (std::uint64_t i = 0; i < 5000; ++i) {
    MoveTicket ticket = 0;
    const std::uint64_t value = i + 1;
    const ByteView word(reinterpret_cast<const std::byte*>(&value), 8);
    while (moving.engine->store(moving.memory.data() + i % 100 * 8, word, ticket) == 0) {
      ++refused;
      REQUIRE_FALSE(moving.engine->has_failed());
      REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
      std::this_thread::yield();
    }
  }
  REQUIRE(finish(model, *moving.engine));
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, moving.memory.data() + i * 8, 8);
    CHECK(value == 4901 + i);
  }
  INFO("refused " << refused << " times");
}

TEST_CASE("memory that was not shown ends the engine by name, also after it was hidden",
          "[req:3.9]") {
  LateModel model(1);
  Moving moving(2 << 20);
  REQUIRE(
      moving.server.process->show(moving.memory.data(), moving.memory.bytes, moving.memory.handle())
          .ok());
  moving.server.process->hide(moving.memory.data());
  const Bytes bytes(100);
  MoveTicket ticket = 0;
  CHECK(moving.engine->store(moving.memory.data(), bytes, ticket) == 100);  // one reference is left
  REQUIRE(finish(model, *moving.engine));
  moving.server.process->hide(moving.memory.data());
  CHECK(moving.engine->store(moving.memory.data(), bytes, ticket) == 0);
  REQUIRE(moving.engine->has_failed());
  CHECK(moving.engine->failure().error().message().find("software NIC") != std::string::npos);
}

TEST_CASE("when streams fail in the process the engine fails with the driver's own status",
          "[req:3.9]") {
  LateModel model(1);
  {
    Moving moving(2 << 20);
    const Bytes bytes(100);
    MoveTicket ticket = 0;
    REQUIRE(moving.engine->store(moving.memory.data(), bytes, ticket) == 100);
    static_cast<void>(moving.engine->flush());
    model.fail_streams(CUDA_ERROR_ILLEGAL_ADDRESS);
    const Deadline due = soon();
    while (moving.engine->flush()) {
      std::this_thread::yield();
      REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
    }
    REQUIRE(moving.engine->has_failed());
    CHECK(moving.engine->failure().error().native().value == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(moving.engine->drain().ok());  // nothing is moving any more
  }
  model.fail_streams(CUDA_SUCCESS);
}

TEST_CASE("any failed driver call of the NIC process is undone and reported to the client",
          "[req:3.9]") {
  int failures = 0;
  long k = 1;
  for (bool hit = true; hit; ++k) {
    INFO(k);
    LateModel model(1);
    const oriel::test::CudaFaultHooks hooks;
    oriel::test::FaultPlan plan;
    plan.fail_at = k;
    plan.status = CUDA_ERROR_OUT_OF_MEMORY;
    {
      ShareableGpuMemory memory(0, 2 << 20);
      AllocationHandle handle = memory.handle();
      const GpuUuid gpu = uuid_of(0);
      const oriel::test::ScopedCudaFaults faults(plan, oriel::test::Reach::process);
      auto [own, other] = nic_sockets();
      std::thread thread([socket = std::move(other)]() mutable {
        NicServer server(std::move(socket));
        static_cast<void>(server.run());
      });
      auto process = NicProcess::join(std::move(own), {.gpu = gpu}).value();
      Status went = process->await_ready(soon());
      if (went.ok()) went = process->show(memory.data(), memory.bytes, std::move(handle));
      if (went.ok()) {
        auto stream = NicProcess::open_stream(process, 4, 4096);
        if (!stream.ok()) {
          went = stream.error();
        } else {
          CudaCopyEngine engine(std::move(stream).value(), 4);
          MoveTicket ticket = 0;
          const Bytes bytes(100, std::byte{1});
          REQUIRE(engine.store(memory.data(), bytes, ticket) == 100);
          REQUIRE(engine.copy(memory.data() + 200, memory.data(), 99, ticket));
          went = finish(model, engine) ? Status() : engine.failure();
          if (went.ok()) CHECK(std::memcmp(memory.data() + 200, bytes.data(), 99) == 0);
        }
      }
      process->hide(memory.data());
      process.reset();
      thread.join();
      if (!went.ok()) {
        ++failures;
        CHECK(went.error().native().value == CUDA_ERROR_OUT_OF_MEMORY);
      }
    }
    hit = plan.hit();
  }
  CHECK(failures > 15);
}

TEST_CASE("the NIC process ends at a malformed request and refuses one that it cannot serve",
          "[req:3.23]") {
  LateModel model(1);
  {
    RawClient client;
    const NicAnswer early = client.send(nic_request::Close{1});
    CHECK(early.failed);
    CHECK(early.text.find("hello") != std::string::npos);
  }
  {
    RawClient client;
    client.send_hello();
    const OwnedFd file = make_sealed_memfd(4096).value();
    CHECK(client.send(nic_request::Close{1}).failed);
    CHECK(client.send(nic_request::Remove{1}).failed);
    CHECK(client.send(nic_request::Open{1, 4, 4096}).failed);         // without its memory
    CHECK(client.send(nic_request::Open{1, 4, 4096}, &file).failed);  // memory of another size
    CHECK(client.send(nic_request::Add{1, 4096, false, {}}, &file).failed);
    CHECK(client.send(nic_request::Add{1, 2 << 20, false, {}}, &file).failed);
    CHECK(client.send(nic_request::Close{1}, &file).failed);  // carries one descriptor too many
    nic_request::Hello again;
    CHECK(client.send(again, &file).failed);
    const OwnedFd memory = make_sealed_memfd(channel_bytes(4, 4096)).value();
    CHECK_FALSE(client.send(nic_request::Open{1, 4, 4096}, &memory).failed);
    CHECK(client.send(nic_request::Open{1, 4, 4096}, &memory).failed);  // the stream exists already
    const Bytes noise(40, std::byte{0x5a});
    CHECK(client.send(noise, nullptr).failed);
    client.thread.join();
    CHECK_FALSE(client.ended.ok());
    client.thread = std::thread([] {});
  }
}

TEST_CASE("a spoilt ring ends its own stream, with what was wrong, and no other", "[req:3.23]") {
  LateModel model(1);
  RawClient client;
  client.send_hello();
  struct Channel {
    OwnedFd fd = make_sealed_memfd(channel_bytes(4, 4096)).value();
    SharedMapping mapping = SharedMapping::map(fd, channel_bytes(4, 4096)).value();
    NicChannelMemory memory{mapping.data()};
  };
  Channel channels[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    REQUIRE_FALSE(client.send(nic_request::Open{i, 4, 4096}, &channels[i].fd).failed);
  }
  const auto wait_for = [](const auto& condition) {
    const Deadline due = soon();
    while (!condition()) {
      REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
      std::this_thread::yield();
    }
  };
  // Posts a command that names unknown memory, and an impossible counter.
  channels[0].memory.command(0).kind = NicCommand::load;
  channels[0].memory.command(0).region = 12;
  channels[0].memory.command(0).bytes = 8;
  channels[0].memory.produced().store(1);
  channels[1].memory.produced().store(kNicCommands + 1);
  for (const int i : {0, 1}) {
    wait_for([&] { return channels[i].memory.failed().load() != 0; });
    CHECK(channels[i].memory.header().text[0] != '\0');
  }
  channels[2].memory.command(0).kind = NicCommand::signal;
  channels[2].memory.command(0).value = 5;
  channels[2].memory.produced().store(1);
  wait_for([&] {
    model.run_streams(4);
    return channels[2].memory.count().load() == 5;
  });
  CHECK(channels[2].memory.failed().load() == 0);
}

TEST_CASE("a program is used as named, one that does not exist or serve is an error", "[req:3.9]") {
  const auto named = NicProcess::find_program("/nowhere/oriel-nic");
  REQUIRE_FALSE(named.ok());
  CHECK(named.error().message().find("ORIEL_NIC_PROGRAM") != std::string::npos);
  CHECK(NicProcess::find_program("/bin/true").value() == "/bin/true");
  // Starts a program that does not serve: it ends before it sends anything.
  auto silent = NicProcess::start({.program = "/bin/true"});
  if (silent.ok()) CHECK_FALSE(silent.value()->await_ready(soon()).ok());
  CHECK_FALSE(NicProcess::start({.program = "/bin/false"}).ok());
  CHECK_FALSE(NicProcess::start({.program = "/nowhere"}).ok());
}

TEST_CASE("the process is nobody's child, and its death ends queues with an error", "[req:3.9]") {
  LateModel model(1);
  auto process = NicProcess::start({.program = ORIEL_TEST_NIC_PROGRAM, .gpu = uuid_of(0)}).value();
  const Status ready = process->await_ready(soon());
  REQUIRE(ready.ok());
  REQUIRE(process->pid() > 0);
  CHECK(::waitpid(-1, nullptr, WNOHANG) < 0);
  ShareableGpuMemory memory(0, 2 << 20);
  REQUIRE(process->show(memory.data(), memory.bytes, memory.handle()).ok());
  CudaCopyEngine engine(NicProcess::open_stream(process, 4, 4096).value(), 4);
  MoveTicket ticket = 0;
  const Bytes bytes(3001, std::byte{1});
  REQUIRE(engine.store(memory.data() + 1, bytes, ticket) == 3001);
  const Deadline due = soon();
  while (engine.flush()) REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
  REQUIRE_FALSE(engine.has_failed());
  CHECK(std::memcmp(memory.data() + 1, bytes.data(), bytes.size()) == 0);
  REQUIRE(::kill(process->pid(), SIGKILL) == 0);
  static_cast<void>(engine.store(memory.data() + 1, bytes, ticket));
  while (engine.flush()) REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
  REQUIRE(engine.has_failed());
  CHECK(engine.failure().error().message().find("has ended") != std::string::npos);
  CHECK(engine.drain().ok());  // nothing is moving any more
  CHECK_FALSE(process->poll().ok());
  process->hide(memory.data());
}

TEST_CASE("the process ends with its rank, also while a child of the rank holds the socket",
          "[req:3.9]") {
  int pipe_ends[2] = {-1, -1};
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t rank = ::fork();
  REQUIRE(rank >= 0);
  if (rank == 0) {
    LateModel model(1);
    auto process = NicProcess::start({.program = ORIEL_TEST_NIC_PROGRAM, .gpu = uuid_of(0)});
    pid_t pids[2] = {0, 0};
    if (process.ok() && process.value()->await_ready(soon()).ok()) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::pause();
        ::_exit(0);
      }
      pids[0] = process.value()->pid();
      pids[1] = child;
    }
    const bool written = ::write(pipe_ends[1], pids, sizeof pids) == sizeof pids;
    ::_exit(written ? 0 : 1);
  }
  pid_t pids[2] = {0, 0};
  REQUIRE(::read(pipe_ends[0], pids, sizeof pids) == sizeof pids);
  REQUIRE(pids[0] != 0);
  const OwnedFd server(sys().pidfd_open(pids[0], 0));
  int status = 0;
  REQUIRE(::waitpid(rank, &status, 0) == rank);
  if (server) {  // else it has ended already
    pollfd entry{server.get(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 20'000) == 1);
  }
  ::kill(pids[1], SIGKILL);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}
