// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "nccl.h"

#include "comm/device/device.hpp"
#include "comm/group/group_jobs.hpp"
#include "comm/support/device_around.hpp"
#include "comm/support/model_gpu.hpp"
#include "support/ranks.hpp"

/// Order in which a group enqueues its launches and joins its streams.
namespace oriel::test {
namespace {

cudaStream_t stream(char name) {
  return reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(name));
}

/// Returns a communicator of one rank, which logs its work in `script` under `name`.
ncclComm_t init(ExecutorScript& script, const char* name) {
  const auto gpu = comm::device_with_ordinal(0);
  require(gpu.ok(), "a device");
  const ncclUniqueId id = new_id();
  const auto decoded = boot::UniqueId::decode(std::as_bytes(std::span(id.internal)));
  comm::GroupJobs jobs;
  jobs.push_back(comm::make_init_job(decoded.value(), 0, 1, comm::CommunicatorOptions{}, true,
                                     new DeviceAround(*gpu.value(), script, name)));
  ncclComm_t comm = nullptr;
  std::get<comm::InitJob>(jobs.front()).handle.show(&comm);
  bool in_progress = false;
  const Status started = comm::run_jobs(jobs, in_progress);
  require(started.ok(), started.ok() ? "" : started.error().to_string());
  return comm;
}

void require_notes(ExecutorScript& script, const std::vector<std::string>& expected) {
  std::string all;
  const auto notes = script.take_notes();
  for (const std::string& note : notes) all += note + "; ";
  require(notes == expected, all);
}

}  // namespace

TEST_CASE("streams of a group meet before its first launch and wait for the last of a communicator",
          "[req:5.2]") {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_SCRATCH_SIZE", "1M"}});
  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks&) {
    const FakeCuda& model = model_with_current_device(FakeCuda::Options{}, 0);
    static auto& script = *new ExecutorScript;
    const ncclComm_t x = init(script, "x");
    const ncclComm_t y = init(script, "y");
    const Buffer buffer(4096);
    auto* const data = reinterpret_cast<float*>(buffer.at());
    const auto reduce = [&](ncclComm_t comm, char where, std::size_t count = 4) {
      require(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, stream(where)), "note");
    };
    const auto send_to_self = [&](ncclComm_t comm, char where) {
      require(ncclSend(data, 4, ncclFloat, 0, comm, stream(where)), "note");
      require(ncclRecv(data + 8, 4, ncclFloat, 0, comm, stream(where)), "note");
    };
    static_cast<void>(script.take_notes());

    // The order of the exchanges by communicator is independent of the order of the calls.
    require(ncclGroupStart(), "ncclGroupStart");
    send_to_self(x, 'a');
    send_to_self(y, 'a');
    require(ncclGroupEnd(), "ncclGroupEnd");
    const std::vector<std::string> exchanges = script.take_notes();
    const bool x_is_first = exchanges.front().front() == 'x';
    require(ncclGroupStart(), "ncclGroupStart");
    send_to_self(y, 'a');
    send_to_self(x, 'a');
    require(ncclGroupEnd(), "ncclGroupEnd");
    require_notes(script, exchanges);

    require(ncclGroupStart(), "ncclGroupStart");
    send_to_self(x, 'c');
    reduce(y, 'a');
    reduce(x, 'a');
    reduce(x, 'b');
    send_to_self(y, 'a');
    require(ncclGroupEnd(), "ncclGroupEnd");
    require_notes(script,
                  {"x joins cab at a", "y reduces on a", "x reduces on a", "x reduces on b",
                   x_is_first ? "x exchanges on c" : "y exchanges on a",
                   x_is_first ? "y exchanges on a" : "x exchanges on c", "x releases cab from c"});

    require(ncclGroupStart(), "ncclGroupStart");
    reduce(x, 'a');
    reduce(x, 'b', 0);  // no launch
    require(ncclGroupEnd(), "ncclGroupEnd");
    require_notes(script, {"x joins ab at a", "x reduces on a", "x releases ab from a"});

    require(ncclGroupStart(), "ncclGroupStart");
    send_to_self(x, 'a');
    reduce(x, 'a');
    require(ncclGroupEnd(), "ncclGroupEnd");
    require_notes(script, {"x reduces on a", "x exchanges on a"});

    require(ncclCommDestroy(x), "ncclCommDestroy");
    require(ncclCommDestroy(y), "ncclCommDestroy");
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

}  // namespace oriel::test
