// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "api/all_modes.hpp"
#include "api/api_ranks.hpp"
#include "comm/support/held.hpp"

/// Tests the C++ interface: communicators, buffers and windows.
namespace oriel::test {
namespace {

constexpr std::size_t kBytes = 3 * 4096;

/// Returns the resources of this process while no rank acts. Only rank 0 counts, because counting
/// opens a descriptor itself; other ranks get zeros.
Held held_at_rest(TestRanks& test_ranks) {
  test_ranks.barrier();
  Held held{};
  if (test_ranks.first() == 0) held = settled();
  test_ranks.barrier();
  return held;
}

/// Checks that this process holds no more than `expected` while no rank acts.
void require_held_at_rest(TestRanks& test_ranks, const Held& expected, const std::string& when) {
  test_ranks.barrier();
  if (test_ranks.first() == 0) require_held(expected, when);
  test_ranks.barrier();
}

TEST_CASE("a C++ program makes an id, a communicator, windows and an all-reduce", "[req:1.25]") {
  in_all_modes(3, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const int rank = test_ranks.first();
    require(comm.rank() == rank && comm.size() == 3, "rank and size");
    require(comm.cuda_device() == -1, "the CPU");
    require(comm.lsa_team() == std::vector<int>{0, 1, 2}, "the team");

    const auto memory = must(comm.allocate(kBytes));
    require(memory.bytes() == kBytes && memory.data() != nullptr, "the buffer");
    const auto window = must(comm.register_window(memory));
    require(window.data() == memory.data() && window.bytes() == kBytes, "the window");
    auto* const data = static_cast<double*>(memory.data());
    for (int i = 0; i < 512; ++i) data[i] = i + rank;
    must(comm.all_reduce(
        {.input = data, .output = data, .count = 512, .type = DataType::f64, .op = ReduceOp::max}));
    for (int i = 0; i < 512; ++i) require(data[i] == i + 2, "the maximum");

    const float factor = 0.25f * static_cast<float>(rank + 1);
    float value = 4;
    must(comm.all_reduce({.input = &value,
                          .output = &value,
                          .count = 1,
                          .op = ReduceOp::premul_sum,
                          .scalar = &factor}));
    require(value == 6, "the pre-multiplied sum");
    must(comm.close());
  });
}

TEST_CASE("a window's view reaches all ranks' memory, and nothing after close()", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const int rank = test_ranks.first();
    const auto memory = must(comm.allocate(kBytes));
    auto window = must(comm.register_window(memory));
    const device::WindowView view = window.view();
    require(view.lsa_rank == rank && view.lsa_size == 2 && view.world_size == 2, "the ranks");
    *static_cast<int*>(view.lsa_peer(1 - rank, 4096, sizeof(int))) = 100 + rank;
    test_ranks.barrier();
    require(static_cast<int*>(memory.data())[1024] == 101 - rank, "what the peer wrote");
    require(view.world_peer(1 - rank, 0, kBytes) == view.lsa_peer(1 - rank, 0, 1), "by world rank");
    require(view.lsa_peer(0, 1, kBytes) == nullptr && view.lsa_peer(2, 0, 1) == nullptr,
            "what lies outside");
    // The C interface's handle yields the same view.
    const device::WindowView same = device::WindowView::of(window.handle());
    require(same.flat_base == view.flat_base && same.size_bytes == kBytes, "the handle's view");
    test_ranks.barrier();
    Window moved = std::move(window);
    require(window.handle() == nullptr && window.view().local(0, 1) == nullptr, "moved from");
    must(moved.close());
    must(moved.close());
    require(moved.handle() == nullptr && moved.view().local(0, 1) == nullptr, "closed");
  });
}

TEST_CASE("a window works after its communicator is closed and its buffer is freed", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    std::optional<Window> window;
    oriel::Buffer memory;
    {
      auto comm = join(test_ranks);
      memory = must(comm.allocate(kBytes));
      window.emplace(must(comm.register_window(memory)));
      must(comm.close());
      require(comm.rank() == test_ranks.first() && comm.handle() == nullptr, "a closed one");
      float value = 1;
      must_fail(comm.all_reduce({.input = &value, .output = &value, .count = 1}),
                ErrorCode::invalid_usage, {"closed"});
      must_fail(comm.register_window(memory), ErrorCode::invalid_usage, {"closed"});
      must_fail(comm.device_comm(), ErrorCode::invalid_usage, {"closed"});
      must_fail(comm.allocate(1), ErrorCode::invalid_usage, {"closed"});
      require(!comm.async_error(), "no error");
      comm.abort();  // has no effect: nothing runs
      must(comm.close());
    }
    const int rank = test_ranks.first();
    *static_cast<int*>(window->view().lsa_peer(1 - rank, 0, sizeof(int))) = 7;
    test_ranks.barrier();
    require(*static_cast<int*>(memory.data()) == 7, "what the peer wrote");
    test_ranks.barrier();
    memory = oriel::Buffer();  // the window keeps the memory alive
    *static_cast<int*>(window->view().lsa_peer(1 - rank, 0, sizeof(int))) = 8;
    test_ranks.barrier();
    require(*static_cast<int*>(window->view().local(0, sizeof(int))) == 8, "through the window");
    test_ranks.barrier();
  });
}

TEST_CASE("several windows are registered at once, or none", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto memory = must(comm.allocate(kBytes));
    auto* const base = static_cast<std::byte*>(memory.data());
    const MemoryRange ranges[] = {{base, kBytes}, {base + 4096, 100}, {base + 8192, 4096}};
    const auto windows = must(comm.register_windows(ranges));
    require(windows.size() == 3 && windows[1].data() == base + 4096 && windows[1].bytes() == 100,
            "three windows");
    const Held before = held_at_rest(test_ranks);
    // Rank 1 fails, and both ranks receive its error.
    std::vector<MemoryRange> bad(std::begin(ranges), std::end(ranges));
    if (test_ranks.first() == 1) bad[2].data = nullptr;
    must_fail(comm.register_windows(bad), ErrorCode::invalid_argument, {"rank 1", "null"});
    require_held_at_rest(test_ranks, before, "after the failed registration");
  });
}

TEST_CASE("wrong arguments of the C++ interface are named", "[req:1.25]") {
  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks&) {
    const auto refused = Communicator::init(UniqueId{}, 0, 1);
    must_fail(refused, ErrorCode::invalid_argument, {"unique id", "Communicator::init"});
    must_fail(Communicator::borrow(nullptr), ErrorCode::invalid_argument, {"null"});
    const auto id = must(UniqueId::create());
    must_fail(Communicator::init(id, 2, 2), ErrorCode::invalid_argument, {"rank 2 of 2"});
    must_fail(Communicator::init(id, -1, 2), ErrorCode::invalid_argument, {"rank -1"});
    must_fail(Communicator::init(id, 0, 1, {.max_ctas = 1025}), ErrorCode::invalid_argument,
              {"max_ctas", "1025"});
    must_fail(Communicator::init(id, 0, 1, {.min_ctas = 3, .max_ctas = 2}),
              ErrorCode::invalid_argument, {"min_ctas", "3", "2"});
  }));

  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    float value = 1;
    AllReduceArguments call{.input = &value, .output = &value, .count = 1};
    call.op = ReduceOp::premul_sum;
    must_fail(comm.all_reduce(call), ErrorCode::invalid_argument, {"scalar", "premul_sum"});
    call.op = ReduceOp::min;
    call.scalar = &value;
    must_fail(comm.all_reduce(call), ErrorCode::invalid_argument, {"scalar", "min"});
    call.scalar = nullptr;
    call.type = static_cast<DataType>(12);
    must_fail(comm.all_reduce(call), ErrorCode::invalid_argument, {"type is 12"});
    call.type = DataType::f32;
    call.op = static_cast<ReduceOp>(6);
    must_fail(comm.all_reduce(call), ErrorCode::invalid_argument, {"op is 6"});
    call.op = ReduceOp::sum;
    call.stream = &value;
    must_fail(comm.all_reduce(call), ErrorCode::invalid_argument, {"stream"});
    must_fail(comm.allocate(0), ErrorCode::invalid_argument, {});
    must_fail(comm.register_window(MemoryRange{&value, 4}), ErrorCode::invalid_argument, {});
  }));
}

TEST_CASE("the C and the C++ interface take each other's communicators", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    const float expected = 3;
    {
      auto comm = join(test_ranks);
      float value = static_cast<float>(test_ranks.first() + 1);
      require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm.handle(), nullptr),
              "ncclAllReduce of a C++ communicator");
      require(value == expected, "the sum");
      ncclComm_t handle = comm.handle();
      must(comm.close());
      expect_error(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, handle, nullptr),
                   ncclInvalidArgument, "after close()");
    }
    auto comms = test_ranks.init();
    {
      auto borrowed = must(Communicator::borrow(comms[0]));
      require(borrowed.rank() == test_ranks.first() && borrowed.size() == 2, "rank and size");
      float value = static_cast<float>(test_ranks.first() + 1);
      must(borrowed.all_reduce({.input = &value, .output = &value, .count = 1}));
      require(value == expected, "the sum");
    }
    test_ranks.barrier();
    const ncclComm_t stale = comms[0];
    test_ranks.destroy(comms);
    must_fail(Communicator::borrow(stale), ErrorCode::invalid_argument, {"no communicator"});
  });
}

TEST_CASE("abort() from another thread ends a call, and the communicator says why", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    if (test_ranks.first() == 0) {
      std::jthread aborter([&comm] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        comm.abort();
      });
      float value = 1;
      must_fail(comm.all_reduce({.input = &value, .output = &value, .count = 1}),
                ErrorCode::aborted, {"abort"});
      aborter.join();
      const auto error = comm.async_error();
      require(error && error->code() == ErrorCode::aborted, "the asynchronous error");
    }
    test_ranks.barrier();
  });
}

TEST_CASE("cycles of the C++ interface leave nothing behind", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    Held after_third{};
    for (int cycle = 1; cycle <= 23; ++cycle) {
      {
        auto comm = join(test_ranks);
        const auto memory = must(comm.allocate(kBytes));
        const auto window = must(comm.register_window(memory));
        const auto kernels = must(comm.device_comm({.barrier_slots = 4}));
        test_ranks.barrier();
      }
      if (cycle == 3) after_third = held_at_rest(test_ranks);
    }
    require_held_at_rest(test_ranks, after_third, "after the last cycle");
  });
}

}  // namespace
}  // namespace oriel::test
