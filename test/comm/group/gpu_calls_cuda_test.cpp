// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "nccl.h"

#include "comm/support/logged_executor.hpp"
#include "comm/support/model_gpu.hpp"
#include "comm/support/network_of.hpp"
#include "support/cuda/noted_calls.hpp"
#include "support/failing_memory.hpp"
#include "support/ranks.hpp"

/// Work of the host for the calls of a GPU rank, from the NCCL interface down to the driver.
/// Launches of the driver model run nothing.
namespace oriel::test {
namespace {

using Names = std::vector<std::string>;

const Names kOneLaunch{"stream_get_capture_info", "stream_get_id", "launch_kernel_ex",
                       "event_record"};

/// A communicator of one rank on the model, and a stream.
struct GpuRank {
  explicit GpuRank(TestRanks& test_ranks) : comm(test_ranks.init()[0]) {
    require(cuda().stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "a stream");
  }
  void end() const {
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require(cuda().stream_destroy(stream) == CUDA_SUCCESS, "the stream");
  }
  ncclComm_t comm;
  cudaStream_t stream = nullptr;
};

struct GpuCall {
  const char* name;
  ncclResult_t (*make)(const GpuRank& rank, float* data);
};

constexpr GpuCall kGpuCalls[] = {
    {"an all-reduce",
     [](const GpuRank& rank, float* data) {
       return ncclAllReduce(data, data, 2, ncclFloat, ncclSum, rank.comm, rank.stream);
     }},
    {"a reduce-scatter",
     [](const GpuRank& rank, float* data) {
       return ncclReduceScatter(data, data, 2, ncclFloat, ncclSum, rank.comm, rank.stream);
     }},
    {"an all-gather",
     [](const GpuRank& rank, float* data) {
       return ncclAllGather(data, data + 8, 2, ncclFloat, rank.comm, rank.stream);
     }},
    {"a broadcast",
     [](const GpuRank& rank, float* data) {
       return ncclBroadcast(data, data + 8, 2, ncclFloat, 0, rank.comm, rank.stream);
     }},
    {"a send and a receive",
     [](const GpuRank& rank, float* data) {
       const ncclResult_t started = ncclGroupStart();
       const ncclResult_t sent = ncclSend(data, 2, ncclFloat, 0, rank.comm, rank.stream);
       const ncclResult_t received = ncclRecv(data + 8, 2, ncclFloat, 0, rank.comm, rank.stream);
       const ncclResult_t ended = ncclGroupEnd();
       return started + sent + received == ncclSuccess ? ended : ncclInternalError;
     }},
};

void require_names(const Names& names, const Names& expected, const std::string& what) {
  std::string all = what + ":";
  for (const std::string& name : names) all += " " + name;
  require(names == expected, all);
}

/// Makes each call once to warm up, then lets `check(call, name)` repeat the call.
template <class Check>
void check_calls(const GpuRank& rank, float* data, const Check& check) {
  for (const GpuCall& one : kGpuCalls) {
    const auto call = [&] { require(one.make(rank, data), one.name); };
    call();
    check(call, std::string(one.name));
  }
}

/// Returns the driver table in force, on which `captured` is in a capture.
CudaTable capturing_table(cudaStream_t captured) {
  driver = {};
  driver.captures = {{captured, 7}};
  CudaTable table = cuda();
  log_captures(table);
  return table;
}

/// Runs one rank on the model.
template <class Body>
void run_on_model(const Body& body) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_SCRATCH_SIZE", "1M"}});
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks& test_ranks) {
    FakeCuda& model = model_with_current_device(FakeCuda::Options{}, 0);
    const Buffer buffer(4096);
    const GpuRank rank(test_ranks);
    body(model, rank, reinterpret_cast<float*>(buffer.at()));
    rank.end();
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

}  // namespace

TEST_CASE("a call of a GPU rank, made again on its stream, takes four driver calls", "[req:5.6]") {
  run_on_model([](FakeCuda& model, const GpuRank& rank, float* data) {
    NotedCalls noted;
    check_calls(rank, data, [&](const auto& call, const std::string& what) {
      const int before = model.launches();
      require_names(noted.names_of(call), kOneLaunch, what);
      require(model.launches() == before + 1, what + " is not one launch");
    });
  });
}

TEST_CASE(
    "a call of a GPU rank with ORIEL_DUMP_DIR takes five driver calls, and its end is recorded",
    "[req:5.7]") {
  const Environment environment(Variables{{"ORIEL_DUMP_DIR", "/tmp"}});
  run_on_model([](FakeCuda&, const GpuRank& rank, float* data) {
    NotedCalls noted;
    check_calls(rank, data, [&](const auto& call, const std::string& what) {
      call();  // creates the event of its mark
      const auto made = noted.names_of(call);
      require(std::count(made.begin(), made.end(), "event_record") == 2, what);
    });
    const auto comm = must(comm::find_communicator(rank.comm));
    std::uint64_t mark = 0;
    for (const comm::FlightRecord& record : NetworkInside::flight(*comm).records()) {
      require(record.mark == mark || record.mark == mark + 1, "marks count launches");
      mark = record.mark;
    }
    require(mark > 0, "calls are marked");
  });
}

TEST_CASE("a call of a GPU rank, made again, allocates nothing", "[req:5.6]") {
  run_on_model([](FakeCuda&, const GpuRank& rank, float* data) {
    check_calls(rank, data, [&](const auto& call, const std::string& what) {
      require(!with_failure(0, call, Whose::callers), what + " allocates");
    });
  });
}

TEST_CASE(
    "a call of a GPU rank breaks no capture of another thread, also from a thread without a "
    "context",
    "[req:5.6][D2]") {
  run_on_model([](FakeCuda& model, const GpuRank& rank, float* data) {
    const auto call = [&] {
      for (const GpuCall& one : kGpuCalls) require(one.make(rank, data), one.name);
    };
    model.begin_foreign_capture();
    call();
    std::jthread(call).join();
    const int launched = model.launches();
    require(launched == 2 * static_cast<int>(std::size(kGpuCalls)), "launches");
    model.end_foreign_capture();
  });
}

TEST_CASE("calls of a GPU rank are recorded once, when enqueued or captured, others are not",
          "[req:4.11][req:5.7]") {
  run_on_model([](FakeCuda& model, const GpuRank& rank, float* data) {
    const auto comm = must(comm::find_communicator(rank.comm));
    const auto call = [&] {
      return ncclAllReduce(data, data, 2, ncclFloat, ncclSum, rank.comm, rank.stream);
    };
    const auto require_records = [&](std::size_t count, const std::string& when) {
      const auto records = NetworkInside::flight(*comm).records();
      require(records.size() == count, fmt::format("{}: {} records", when, records.size()));
      for (const comm::FlightRecord& record : records) {
        require(record.ended == 0, when + ": marked as ended");
      }
    };
    require(call(), "a plain call");
    require(cuda().stream_synchronize(rank.stream) == CUDA_SUCCESS, "the stream");
    require_records(1, "a call that has ended");
    {
      const ScopedCudaTable capturing(capturing_table(rank.stream));
      const int before = model.launches();
      require(call(), "a captured call");
      require(model.launches() == before + 1, "the captured launch");
      require_records(2, "a captured call");
    }
    for (const auto& release : driver.graphs) release();
    {
      CudaTable refusing = cuda();
      refusing.launch_kernel_ex = [](const CUlaunchConfig*, CUfunction, void**, void**) {
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
      };
      const ScopedCudaTable scoped(refusing);
      require(call() != ncclSuccess, "a launch that the driver refuses");
    }
    require(
        ncclAllReduce(nullptr, data, 2, ncclFloat, ncclSum, rank.comm, rank.stream) != ncclSuccess,
        "a null buffer");
    require_records(2, "calls that were not enqueued");
  });
}

TEST_CASE("a launch that the driver refuses, with ORIEL_DUMP_DIR, has the last calls written",
          "[req:5.7]") {
  const std::string folder = fmt::format("/tmp/oriel-refused-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const Environment environment(Variables{{"ORIEL_DUMP_DIR", folder}});
  run_on_model([&](FakeCuda&, const GpuRank& rank, float* data) {
    const auto files = [&] {
      return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    CudaTable refusing = cuda();
    refusing.launch_kernel_ex = [](const CUlaunchConfig*, CUfunction, void**, void**) {
      return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    };
    require(files() == 0, "no file before");
    const ScopedCudaTable scoped(refusing);
    require(ncclAllReduce(data, data, 2, ncclFloat, ncclSum, rank.comm, rank.stream) ==
                ncclUnhandledCudaError,
            "a launch that the driver refuses");
    require(files() == 1, "a file after it");
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("a group on two streams whose first launch the driver refuses returns the error",
          "[req:5.2]") {
  run_on_model([](FakeCuda& model, const GpuRank& rank, float* data) {
    CUstream other = nullptr;
    require(cuda().stream_create(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "a stream");
    CudaTable refusing = cuda();
    refusing.launch_kernel_ex = [](const CUlaunchConfig*, CUfunction, void**, void**) {
      return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    };
    {
      const ScopedCudaTable scoped(refusing);
      require(ncclGroupStart(), "ncclGroupStart");
      for (const cudaStream_t stream : {rank.stream, static_cast<cudaStream_t>(other)}) {
        require(ncclAllReduce(data, data, 2, ncclFloat, ncclSum, rank.comm, stream), "note");
      }
      expect_error(ncclGroupEnd(), ncclUnhandledCudaError, "the group");
    }
    require(model.launches() == 0, "launches");
    require(cuda().stream_destroy(other) == CUDA_SUCCESS, "the stream");
  });
}

}  // namespace oriel::test
