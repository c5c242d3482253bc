// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Calls NCCL from destructors of the application's thread-local and static objects. All but one of
// these destructors run after the library's own objects of that thread are destroyed (Holder).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <unistd.h>

#include "nccl.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  static_cast<void>(
      std::fprintf(stderr, "not so: %s; the last error: %s\n", what, ncclGetLastError(nullptr)));
  ::_exit(1);  // a destructor has no other way to report an error
}

bool says(const char* part) {
  return std::strstr(ncclGetLastError(nullptr), part) != nullptr;
}

void fail_once() {
  int never = 0;
  require(ncclMemFree(&never) != ncclSuccess, "ncclMemFree refuses what is no allocation");
  require(says("ncclMemFree"), "the last error is ncclMemFree's");
}

ncclResult_t sum_one(float& one, ncclComm_t comm) {
  return ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr);
}

void work_once(ncclComm_t comm) {
  float one = 1;  // must outlive the groups, which run the calls when they end
  require(ncclGroupStart() == ncclSuccess, "a group begins");
  require(sum_one(one, comm) == ncclSuccess, "a call in a group");
  require(ncclGroupEnd() == ncclSuccess, "a group ends");
  require(ncclGroupStart() == ncclSuccess, "a second group begins");
  require(sum_one(one, comm) == ncclSuccess, "a call in the second group");
  require(sum_one(one, nullptr) != ncclSuccess, "a refused call in the second group");
  require(says("ncclAllReduce"), "the last error is ncclAllReduce's");
  require(ncclGroupEnd() != ncclSuccess, "the second group says so");
}

/// Constructed before the library's own objects, and so destroyed after them. The main thread's
/// `of_thread` is an exception: its first use follows calls of that thread.
struct Holder {
  Holder() = default;
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    if (comm == nullptr) return;
    require(says("ncclMemFree"), "the last error outlives the library's objects");
    for (int round = 0; round < 2; ++round) {
      work_once(comm);
      fail_once();
    }
    require(std::strlen(ncclGetLastError(comm)) > 0, "a communicator's last error");
    require(ncclCommDestroy(comm) == ncclSuccess, "a communicator ends");
  }
  ncclComm_t comm = nullptr;
};

Holder of_process;
thread_local Holder of_thread;

void use(Holder& holder) {
  ncclUniqueId id;
  require(ncclGetUniqueId(&id) == ncclSuccess, "an id");
  require(ncclCommInitRank(&holder.comm, 1, id, 0) == ncclSuccess, "a communicator");
  work_once(holder.comm);
  fail_once();
}

}  // namespace

int main() {
  require(::setenv("ORIEL_BACKEND", "host", 1) == 0, "the environment takes a variable");
  std::thread([] { use(of_thread); }).join();
  use(of_process);
  use(of_thread);
  return 0;
}
