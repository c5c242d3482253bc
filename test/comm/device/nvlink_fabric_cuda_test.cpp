// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// GPU ranks whose teams follow from reachability: cliques on one host, hidden devices, and an
// NVLink fabric between hosts. Runs on the models of the CUDA driver and of NVML. Each process has
// the files of its own host, so hosts are told apart as in reality.
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/socket.h>

#include "base/system_table.hpp"
#include "comm/support/in_teams.hpp"
#include "comm/support/model_gpu.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::test {
namespace {

/// A host with GPUs, as seen by one process.
struct Host {
  int number = 0;
  int gpus = 1;                  ///< GPUs of the host
  int visible = -1;              ///< first visible GPU; -1: all are visible
  int shown = 1;                 ///< number of visible GPUs, if `visible` is set
  int clique = 0;                ///< size of the cliques whose GPUs reach each other; 0: all GPUs
  bool fabric = false;           ///< the GPUs are in the fabric clique of all hosts
  bool fabric_permitted = true;  ///< the IMEX service serves this process
};

/// Installs the host in this process, for the rest of its life.
class HostInProcess {
 public:
  HostInProcess(const Host& host, int device) {
    tree_.file("/etc/machine-id", fmt::format("machine {}\n", host.number));
    tree_.file("/proc/sys/kernel/random/boot_id", fmt::format("boot {}\n", host.number));
    tree_.file("/sys/devices/system/node/online", "0\n");
    if (host.fabric) tree_.file("/dev/nvidia-caps-imex-channels/channel0", "");
    for (int gpu = 0; gpu < host.gpus; ++gpu) add_gpu(host, gpu);
    library_ = nvml_.library();
    FakeCuda::Options options;
    options.devices = host.visible < 0 ? host.gpus : host.shown;
    options.first_device = std::max(0, host.visible);
    options.machine = host.number;
    options.clique = host.clique;
    options.fabric = host.fabric;
    options.fabric_permitted = host.fabric_permitted;
    model_ = &model_with_current_device(options, device);
  }
  FakeCuda& model() { return *model_; }
  int nvml_asked() const { return nvml_asked_; }

 private:
  void add_gpu(const Host& host, int gpu) {
    tree_.folder(fmt::format("/proc/driver/nvidia/gpus/0000:{:02x}:00.0", gpu + 1));
    topo::FakeNvml::Device device;
    device.pci = fmt::format("00000000:{:02X}:00.0", gpu + 1);
    device.uuid = fmt::format("GPU-{:02x}{:02x}5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a", gpu, host.number);
    device.links.resize(18);
    if (host.fabric) {
      device.fabric.state = topo::NvmlConstants::kFabricReady;
      device.fabric.cluster[0] = 3;
      device.fabric.clique = 77;
    }
    nvml_.devices.push_back(device);
    for (int other = 0; host.clique > 0 && other < host.gpus; ++other) {
      if (other / host.clique == gpu / host.clique) continue;
      nvml_.refused.push_back({gpu, other, topo::NvmlConstants::read});
    }
  }

  topo::TemporaryTree tree_;
  topo::FakeNvml nvml_;
  topo::NvmlLibrary library_;
  int nvml_asked_ = 0;
  const topo::NvmlLibrary& ask_nvml() {
    ++nvml_asked_;
    return library_;
  }
  topo::ProcessMachine machine_{
      {topo::FileTree(tree_.root()), [this]() -> const topo::NvmlLibrary& { return ask_nvml(); }}};
  topo::ScopedProcessMachine scoped_{machine_};
  FakeCuda* model_ = nullptr;
};

/// Counts the unix sockets that this process has opened.
std::atomic<int> unix_sockets{0};

int socket_counted(int domain, int type, int protocol) {
  if (domain == AF_UNIX) ++unix_sockets;
  return real_system_table().socket(domain, type, protocol);
}

void count_unix_sockets() {
  static SystemTable table = sys();
  table.socket = socket_counted;
  static const ScopedSystemTable scoped(table);
}

using HostOf = std::function<Host(int rank)>;
using Part = std::function<void(TestRanks&, HostInProcess&)>;

/// Runs each rank in a process. Rank r has device r % (visible devices of its host).
void run_on_hosts(int ranks, const HostOf& host_of, const Part& part) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_TIMEOUT", "10s"}});
  check_all_ok(run_ranks(LaunchMode::processes, ranks, [&](TestRanks& test_ranks) {
    const Host host = host_of(test_ranks.first());
    // The host's files are removed with this object; the model stays.
    HostInProcess process(host, test_ranks.first() % (host.visible < 0 ? host.gpus : host.shown));
    count_unix_sockets();
    part(test_ranks, process);
    for (const std::string& violation : process.model().violations()) require(false, violation);
  }));
}

/// Checks that the ranks join, register a window and see each other's stores in these teams.
void meet_in(TestRanks& test_ranks, const std::vector<std::vector<int>>& teams) {
  auto comm = join(test_ranks);
  const int rank = test_ranks.first();
  for (const auto& team : teams) {
    if (std::find(team.begin(), team.end(), rank) == team.end()) continue;
    see_each_other(test_ranks, comm, team);
    return;
  }
  require(false, "a rank without a team");
}

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("two cliques on one host are two teams", "[req:2.3]") {
  const auto host_of = [](int) { return Host{.gpus = 4, .clique = 2}; };
  run_on_hosts(4, host_of, [](TestRanks& test_ranks, HostInProcess& host) {
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    require(host.nvml_asked() == 0, "NVML was asked though CUDA shows all GPUs");
  });
}

TEST_CASE("cliques of GPUs that are hidden from each other's processes are known from NVML",
          "[req:2.3][H1]") {
  const auto host_of = [](int rank) { return Host{.gpus = 4, .visible = rank, .clique = 2}; };
  run_on_hosts(4, host_of, [](TestRanks& test_ranks, HostInProcess& host) {
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    require(host.nvml_asked() == 1, "NVML was not asked once");
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    require(host.nvml_asked() == 1, "the machine was looked for again");
  });
}

TEST_CASE("NVML is not asked about GPUs that are hidden but no rank's", "[req:2.10]") {
  const auto host_of = [](int) { return Host{.gpus = 4, .visible = 2, .shown = 2}; };
  run_on_hosts(2, host_of, [](TestRanks& test_ranks, HostInProcess& host) {
    meet_in(test_ranks, {{0, 1}});
    require(host.nvml_asked() == 0, "NVML was asked");
  });
  // Only rank 1 does not see the other rank's GPU, and so only rank 1 asks NVML.
  const auto uneven = [](int rank) {
    return Host{.gpus = 4, .visible = rank, .shown = 2 - rank, .clique = 2};
  };
  run_on_hosts(2, uneven, [](TestRanks& test_ranks, HostInProcess& host) {
    meet_in(test_ranks, {{0, 1}});
    require(host.nvml_asked() == test_ranks.first(), "who has asked NVML");
  });
}

TEST_CASE("an allocation is mapped by its owner, and by its team once it is a window",
          "[req:2.3][H4]") {
  const auto host_of = [](int) { return Host{.gpus = 4, .clique = 2}; };
  run_on_hosts(4, host_of, [](TestRanks& test_ranks, HostInProcess& host) {
    auto comm = join(test_ranks);
    const auto mappings = [&] { return host.model().held().mappings; };
    const int before = mappings();
    const auto memory = must(comm.allocate(4096));
    require(mappings() == before + 1, "more than its owner maps an allocation");
    test_ranks.barrier();
    {
      const auto window = must(comm.register_window(memory));
      // This rank maps the windows of its team of two, and none of the other two ranks.
      require(mappings() == before + 1 + 2, "other than the team maps a window");
      test_ranks.barrier();
    }
    require(mappings() == before + 1, "a window that is gone is mapped");
    test_ranks.barrier();
  });
}

TEST_CASE("a fabric clique across hosts is one team, whose handles travel without sockets",
          "[req:2.3]") {
  const auto host_of = [](int rank) { return Host{.number = rank, .fabric = true}; };
  run_on_hosts(2, host_of, [](TestRanks& test_ranks, HostInProcess&) {
    meet_in(test_ranks, {{0, 1}});
    require(unix_sockets == 0, fmt::format("{} unix sockets", unix_sockets.load()));
  });
}

TEST_CASE("only the ranks of one host open sockets for descriptors where a team spans two",
          "[req:2.3]") {
  const auto host_of = [](int rank) { return Host{.number = rank / 2, .gpus = 2, .fabric = true}; };
  run_on_hosts(4, host_of, [](TestRanks& test_ranks, HostInProcess&) {
    meet_in(test_ranks, {{0, 1, 2, 3}});
    // One pair on each host: one rank listens, the other connects.
    require(unix_sockets == 1, fmt::format("{} unix sockets", unix_sockets.load()));
  });
}

TEST_CASE("named nodes, other cliques and machines without the service stay apart", "[req:2.3]") {
  const auto fabric_host = [](int rank) {
    return Host{.number = rank / 2, .gpus = 2, .fabric = true};
  };
  run_on_hosts(4, fabric_host, [](TestRanks& test_ranks, HostInProcess&) {
    const Environment named(Variables{{"ORIEL_HOSTID", test_ranks.first() < 2 ? "a" : "b"}});
    meet_in(test_ranks, {{0, 1}, {2, 3}});
  });
  const auto plain_host = [](int rank) { return Host{.number = rank / 2, .gpus = 2}; };
  run_on_hosts(4, plain_host, [](TestRanks& test_ranks, HostInProcess& host) {
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    require(host.nvml_asked() == 0, "NVML was asked though there is no fabric");
  });
  const std::string log = fmt::format("/tmp/oriel-fabric-test-{}", ::getpid());
  const auto refused_host = [](int rank) {
    return Host{.number = rank / 2, .gpus = 2, .fabric = true, .fabric_permitted = false};
  };
  run_on_hosts(4, refused_host, [&](TestRanks& test_ranks, HostInProcess&) {
    const std::string path = fmt::format("{}.{}", log, test_ranks.first());
    const Environment logged(Variables{{"ORIEL_LOG", "info"}, {"ORIEL_LOG_FILE", path}});
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    meet_in(test_ranks, {{0, 1}, {2, 3}});
    const std::string text = text_of_file(path);
    std::filesystem::remove(path);
    const auto count = [&](const std::string& words) {
      int found = 0;
      for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
        ++found;
      }
      return found;
    };
    require(count("the driver gives this process none") == 1, text);
    require(count("found the GPUs of the machine in") == 1, text);
    require(count("NVML asked about fabric cliques") == 1, text);
    require(count("2 LSA teams: 0-1, 2-3; 6 pairs of ranks: ") == (test_ranks.first() == 0 ? 2 : 0),
            text);
  });
}

TEST_CASE("a team across hosts registers on all ranks or on none", "[req:2.3]") {
  const auto host_of = [](int rank) { return Host{.number = rank, .fabric = true}; };
  run_on_hosts(2, host_of, [](TestRanks& test_ranks, HostInProcess& host) {
    auto comm = join(test_ranks);
    const auto memory = must(comm.allocate(4096));
    const auto before = host.model().held();
    {
      CudaTable failing = cuda();
      failing.mem_import_from_shareable_handle = [](CUmemGenericAllocationHandle*, void*,
                                                    CUmemAllocationHandleType) {
        return CUDA_ERROR_UNKNOWN;
      };
      std::optional<ScopedCudaTable> scoped;
      if (test_ranks.first() == 1) scoped.emplace(failing);
      must_fail(comm.register_window(memory), ErrorCode::cuda, {"rank 1", "by fabric handle"});
    }
    require(host.model().held() == before, "something is left");
    test_ranks.barrier();
    const auto window = must(comm.register_window(memory));
    require(window.view().lsa_size == 2, "the size of the team");
    test_ranks.barrier();
  });
}

TEST_CASE("memory without a fabric handle is refused to a team across hosts, on all ranks",
          "[req:2.3]") {
  const auto host_of = [](int rank) { return Host{.number = rank, .fabric = true}; };
  run_on_hosts(2, host_of, [](TestRanks& test_ranks, HostInProcess&) {
    auto comm = join(test_ranks);
    constexpr std::size_t kBytes = std::size_t{2} << 20;
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = device_location(0);
    const bool with_fabric = test_ranks.first() == 0;
    wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (with_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0));
    CUmemAccessDesc access{device_location(0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle handle = 0;
    require(cuda().mem_address_reserve(&base, kBytes, 0, 0, 0) == CUDA_SUCCESS, "reserve");
    require(cuda().mem_create(&handle, kBytes, &wanted, 0) == CUDA_SUCCESS, "create");
    require(cuda().mem_map(base, kBytes, 0, handle, 0) == CUDA_SUCCESS, "map");
    require(cuda().mem_set_access(base, kBytes, &access, 1) == CUDA_SUCCESS, "access");
    must_fail(comm.register_window(MemoryRange{reinterpret_cast<void*>(base), kBytes}),
              ErrorCode::invalid_argument, {"rank 1", "has no fabric handle", "ncclMemAlloc"});
    require(unix_sockets == 0, "a unix socket");
    test_ranks.barrier();
    require(cuda().mem_unmap(base, kBytes) == CUDA_SUCCESS, "unmap");
    require(cuda().mem_release(handle) == CUDA_SUCCESS, "release");
    require(cuda().mem_address_free(base, kBytes) == CUDA_SUCCESS, "free");
  });
}

}  // namespace oriel::test
