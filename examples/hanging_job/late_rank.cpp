// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// A job that hangs, for docs/hang.md. The last rank enters a call SECONDS late, or dies before it.
// With `inside`, SIGSTOP stops the last rank for SECONDS in the second all-reduce (CPU ranks).
//   ORIEL_BACKEND=host oriel-run -n 2 late_rank [SECONDS|die [init|window|all_reduce|inside]]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "../common/launched.hpp"

/// Stops this process 0.3 s later, for `seconds`.
void be_stopped_for(const std::string& seconds) {
  const std::string pid = std::to_string(getpid());
  const std::string script =
      "(sleep 0.3; kill -STOP " + pid + "; sleep " + seconds + "; kill -CONT " + pid + ") &";
  if (std::system(script.c_str()) != 0) std::exit(1);
}

int main(int argc, char** argv) {
  const Launched me = Launched::from_environment();
  const std::string how = argc > 1 ? argv[1] : "0";
  const std::string where = argc > 2 ? argv[2] : "all_reduce";
  const auto come_to = [&](const char* call) {
    if (me.rank != me.ranks - 1 || where != call) return;
    // Dies only after 2 s, when the other ranks wait in the call.
    std::this_thread::sleep_for(std::chrono::seconds(how == "die" ? 2 : std::atoi(how.c_str())));
    if (how == "die") std::quick_exit(0);
  };

  const oriel::UniqueId id = share_unique_id(me);
  come_to("init");
  auto comm = must(oriel::Communicator::init(id, me.rank, me.ranks));
  auto memory = must(comm.allocate(sizeof(float)));
  come_to("window");
  auto window = must(comm.register_window(memory));
  auto* const data = static_cast<float*>(window.data());
  must(comm.all_reduce({.input = data, .output = data, .count = 1}));
  come_to("all_reduce");
  const bool is_inside = where == "inside";
  std::vector<float> values(is_inside ? 16 << 20 : 1, 1.0f);  // many need the work of all ranks
  float* const second = is_inside ? values.data() : data;
  if (is_inside && me.rank == me.ranks - 1) be_stopped_for(how);
  if (is_inside && me.rank != me.ranks - 1) sleep(2);  // the last rank waits when it is stopped
  auto done = comm.all_reduce({.input = second, .output = second, .count = values.size()});
  if (done.ok()) done = comm.close();  // on a GPU, close() waits for the all-reduce
  std::printf("rank %d: %s\n", me.rank, done.ok() ? "done" : done.error().to_string().c_str());
  return done.ok() ? 0 : 1;
}
