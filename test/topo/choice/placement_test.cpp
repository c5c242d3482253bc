// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the system calls for placement, and that this machine's kernel moves a thread.
#include "topo/choice/placement.hpp"

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/in_child.hpp"
#include "support/log_setup.hpp"
#include "support/numa_system.hpp"
#include "topo/choice/local_affinity.hpp"
#include "topo/machine/machines.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/temporary_tree.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

using test::NumaSystem;
using Numbers = std::vector<int>;

/// Two NUMA nodes (0-3, and 4-7 with 1500), a GPU at each, and a GPU at no node.
Machine two_nodes() {
  MachineBuilder build;
  build.numa(0, {0, 1, 2, 3});
  build.numa(1, {4, 5, 6, 7, 1500});
  build.gpu(build.host_bridge(0), "0000:1b:00.0");
  build.gpu(build.host_bridge(1), "0000:9b:00.0");
  build.gpu(build.host_bridge(-1), "0000:ab:00.0");
  return canonical(std::move(build.machine));
}

/// Sets an environment setting of this process for the object's lifetime.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
    reread_process_settings();
  }
  ~Setting() {
    ::unsetenv(name_);
    reread_process_settings();
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

/// Counts the lines with `words` in the log at INFO of a child process that runs `work`.
int lines_logged(const std::string& words, const std::function<void()>& work) {
  const test::LogSetup log("info");
  REQUIRE(test::status_of_child([&] { return work(), 0; }) == 0);
  return log.count(words);
}

}  // namespace

TEST_CASE("the processors and nodes that a thread may use are asked for", "[req:2.5]") {
  NumaSystem system;
  CHECK(cpus_of_this_thread() == system.cpus);
  CHECK(memory_nodes_of_this_thread() == Numbers{0, 1});
  CHECK_FALSE(has_memory_policy());
  SECTION("machines with many of them") {
    system.cpu_bits = 32768;
    system.cpus = {0, 1023, 1024, 8191, 8192, 32767};
    system.node_bits = 4096;
    system.memory_nodes = {0, 63, 64, 1023};
    CHECK(cpus_of_this_thread() == system.cpus);
    CHECK(memory_nodes_of_this_thread() == system.memory_nodes);
  }
  SECTION("a container that refuses the query") {
    system.asking_status = EPERM;
    CHECK_FALSE(cpus_of_this_thread());
    CHECK_FALSE(memory_nodes_of_this_thread());
    CHECK(has_memory_policy());
  }
  SECTION("a kernel that always wants more") {
    system.asking_status = EINVAL;
    CHECK_FALSE(cpus_of_this_thread());
  }
}

TEST_CASE("a thread is moved itself, once, and only if it is elsewhere", "[req:2.5]") {
  NumaSystem system;
  run_this_thread_on({});
  run_this_thread_on(system.cpus);
  CHECK(system.placements.empty());
  pid_t id = 0;
  std::thread([&] {
    id = static_cast<pid_t>(::syscall(SYS_gettid));
    run_this_thread_on({1, 64, 1500});
  }).join();
  REQUIRE(system.placements.size() == 1);
  CHECK(system.placements[0] == NumaSystem::Placement{id, {1, 64, 1500}});
}

TEST_CASE("this kernel moves a thread, and no other", "[req:2.5]") {
  const auto before = cpus_of_this_thread();
  REQUIRE(before);
  std::optional<Numbers> inside;
  std::thread([&] {
    run_this_thread_on({before->back()});
    inside = cpus_of_this_thread();
  }).join();
  CHECK(inside == Numbers{before->back()});
  CHECK(cpus_of_this_thread() == before);
}

TEST_CASE("memory prefers a node and never insists on it", "[req:2.5]") {
  NumaSystem system;
  char page[1];
  prefer_memory_node(page, 4096, -1);
  prefer_memory_node(page, 4096, 1 << 20);
  CHECK(system.preferences.empty());
  prefer_memory_node(page, 8192, 1);
  REQUIRE(system.preferences.size() == 1);
  CHECK(system.preferences[0].at == page);
  CHECK(system.preferences[0].bytes == 8192);
  CHECK(system.preferences[0].mode == MPOL_PREFERRED);
  CHECK(system.preferences[0].nodes == Numbers{1});
  CHECK(system.preferences[0].flags == 0);
}

TEST_CASE("a thread's own memory policy is put back exactly", "[req:2.5]") {
  NumaSystem system;
  SECTION("for a while it prefers the node") {
    {
      const MemoryNodeScope scope(1);
      CHECK(system.policy == NumaSystem::Policy{MPOL_PREFERRED, {1}});
    }
    CHECK(system.policy == NumaSystem::Policy{MPOL_DEFAULT, {}});
    CHECK(system.policies.size() == 2);
  }
  SECTION("no node: nothing happens") {
    { const MemoryNodeScope scope(-1); }
    CHECK(system.policies.empty());
    CHECK(system.questions == 0);
  }
  SECTION("what the user asked for counts more") {
    system.policy = {MPOL_INTERLEAVE | MPOL_F_STATIC_NODES, {0, 1}};
    { const MemoryNodeScope scope(1); }
    CHECK(system.policies.empty());
  }
  SECTION("so does a policy that cannot be read") {
    system.asking_status = EPERM;
    { const MemoryNodeScope scope(1); }
    CHECK(system.policies.empty());
  }
  SECTION("what was refused is not put back") {
    system.memory_status = EPERM;
    { const MemoryNodeScope scope(1); }
    CHECK(system.policies.size() == 1);
  }
}

TEST_CASE("refusals are logged once, at INFO, and are no errors", "[req:2.5]") {
  CHECK(lines_logged("keeping a thread near its GPU was refused (errno 1)", [] {
          NumaSystem system;
          system.cpu_status = EPERM;
          for (int i = 0; i < 3; ++i) run_this_thread_on({1});
        }) == 1);
  CHECK(lines_logged("taking host memory from the nearest NUMA node was refused (errno 1)", [] {
          NumaSystem system;
          system.memory_status = EPERM;
          char page[1];
          for (int i = 0; i < 3; ++i) prefer_memory_node(page, 4096, 1);
          const MemoryNodeScope scope(1);
        }) == 1);
  CHECK(lines_logged("may use no processor near GPU 0000:9b:00.0", [] {
          NumaSystem system;
          system.cpus = {0, 1};
          for (int i = 0; i < 3; ++i) local_affinity_of_gpu(two_nodes(), 1, Settings{});
        }) == 1);
}

TEST_CASE("a process learns what is near its GPUs and its processors", "[req:2.5]") {
  const Machine machine = two_nodes();
  Settings settings;
  NumaSystem system;
  const auto near = [&](int gpu) { return local_affinity_of_gpu(machine, gpu, settings); };
  const auto own = [&] { return local_affinity_of_processors(machine, settings); };
  CHECK(near(0) == Affinity{{0, 1, 2, 3}, 0});
  CHECK(near(1) == Affinity{{4, 5, 6, 7}, 1});
  CHECK(near(2) == Affinity{});
  CHECK(own() == Affinity{system.cpus, -1});
  SECTION("on one node") {
    system.cpus = {6, 1500};
    CHECK(own() == Affinity{{6, 1500}, 1});
    CHECK(near(0) == Affinity{{}, 0, true});
  }
  SECTION("kept from the memory of the other") {
    system.cpus = {5};
    system.memory_nodes = {0};
    CHECK(own() == Affinity{{5}, -1});
    CHECK(near(1) == Affinity{{5}, -1});
  }
  SECTION("with a memory policy of the user's") {
    system.cpus = {5};
    system.policy = {MPOL_BIND, {0}};
    CHECK(own() == Affinity{{5}, -1});
  }
  SECTION("where nothing may be asked") {
    system.asking_status = EPERM;
    CHECK(own() == Affinity{});
    CHECK(near(0) == Affinity{{0, 1, 2, 3}, -1});
  }
  SECTION("switched off") {
    settings.cpu_affinity = false;
    system.questions = 0;
    CHECK(own() == Affinity{});
    CHECK(near(0) == Affinity{});
    CHECK(system.questions == 0);
  }
  SECTION("set to ignore where the process was put") {
    settings.ignore_cpu_affinity = true;
    system.cpus = {6};
    CHECK(near(0) == Affinity{{0, 1, 2, 3}, 0});
    CHECK(near(1) == Affinity{{4, 5, 6, 7, 1500}, 1});
    CHECK(own() == Affinity{{6}, 1});
  }
}

TEST_CASE("a CPU rank's machine is that of the kernel's files, or of ORIEL_TOPO_FILE",
          "[req:2.5]") {
  const TemporaryTree files;
  files.file("/sys/devices/system/node/online", "0-1\n");
  files.file("/sys/devices/system/node/node0/cpulist", "0-3\n");
  files.file("/sys/devices/system/node/node1/cpulist", "4-7\n");
  files.file("/machine.xml", write_nccl_xml(hgx_8()));
  ProcessMachine machine({FileTree(files.root())});
  const ScopedProcessMachine scoped(machine);
  NumaSystem system;
  system.cpus = {4};
  CHECK(own_affinity_of_processors() == Affinity{{4}, 1});
  {
    const Setting off("ORIEL_CPU_AFFINITY", "off");
    CHECK(own_affinity_of_processors() == Affinity{});
  }
  {
    const Setting file("NCCL_TOPO_FILE", files.root() + "/machine.xml");
    CHECK(own_affinity_of_processors() == Affinity{{4}, 0});
    system.cpus = {60, 61};
    CHECK(own_affinity_of_processors() == Affinity{{60, 61}, 1});
  }
  const Setting absent("ORIEL_TOPO_FILE", files.root() + "/absent.xml");
  CHECK(own_affinity_of_processors() == Affinity{});  // communicator start says why
}

}  // namespace oriel::topo
