// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/settings_table.hpp"

#include <array>

namespace oriel::settings_table {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kGiB = 1ULL << 30;

template <auto Member>
constexpr ChoiceKind choice(std::span<const Word> words) {
  using Enum = std::remove_cvref_t<decltype(std::declval<Settings>().*Member)>;
  return ChoiceKind{words, [](const Settings& s) { return static_cast<int>(s.*Member); },
                    [](Settings& s, int value) { s.*Member = static_cast<Enum>(value); }};
}

constexpr Word word(std::string_view text, auto value) {
  return Word{text, static_cast<int>(value)};
}

constexpr std::array kBackends = {word("auto", BackendChoice::automatic),
                                  word("cuda", BackendChoice::cuda),
                                  word("host", BackendChoice::host)};
constexpr std::array kAlgorithms = {
    word("auto", AlgorithmChoice::automatic), word("one_shot", AlgorithmChoice::one_shot),
    word("two_shot", AlgorithmChoice::two_shot), word("stream", AlgorithmChoice::stream),
    word("eager", AlgorithmChoice::eager)};
constexpr std::array kWires = {word("auto", WireChoice::automatic),
                               word("fabric", WireChoice::fabric)};
constexpr std::array kNics = {word("soft", NicKind::soft), word("mlx5", NicKind::mlx5)};
constexpr std::array kDoorbells = {word("auto", DoorbellChoice::automatic),
                                   word("gpu", DoorbellChoice::gpu),
                                   word("cpu", DoorbellChoice::cpu)};
constexpr std::array kGraphMixings = {word("auto", GraphMixing::automatic),
                                      word("0", GraphMixing::off), word("1", GraphMixing::on)};
// Numbers are those of NCCL_CTA_POLICY_*, which may be combined; zero takes precedence over
// efficiency.
constexpr std::array kCtaPolicies = {word("auto", CtaPolicy::automatic),
                                     word("default", CtaPolicy::standard),
                                     word("0", CtaPolicy::standard),
                                     word("efficiency", CtaPolicy::efficiency),
                                     word("1", CtaPolicy::efficiency),
                                     word("zero", CtaPolicy::zero),
                                     word("2", CtaPolicy::zero),
                                     word("3", CtaPolicy::zero),
                                     word("efficiency|zero", CtaPolicy::zero),
                                     word("zero|efficiency", CtaPolicy::zero),
                                     word("default|zero", CtaPolicy::zero),
                                     word("zero|default", CtaPolicy::zero),
                                     word("default|efficiency", CtaPolicy::efficiency),
                                     word("efficiency|default", CtaPolicy::efficiency)};
// NCCL's level "abort", between info and trace, is accepted as info.
constexpr std::array kLogLevels = {
    word("none", LogLevel::none),       word("alert", LogLevel::alert),
    word("version", LogLevel::version), word("warn", LogLevel::warn),
    word("info", LogLevel::info),       word("abort", LogLevel::info),
    word("trace", LogLevel::trace)};

/// Returns whether the text is empty or contains a name. Otherwise a list without names, as a
/// script may produce, would act like an unset variable.
constexpr bool names_something(std::string_view text) {
  return text.empty() || text.find_first_not_of("^=,") != std::string_view::npos;
}

/// Returns whether the text is empty or lists 1 to 4 names.
constexpr bool names_paths(std::string_view text) {
  constexpr int kMost = 4;
  int names = 0;
  bool within = false;
  for (const char c : text) {
    names += c != ',' && !within ? 1 : 0;
    within = c != ',';
  }
  return text.empty() || (names > 0 && names <= kMost);
}

// Titles of the setting groups.
constexpr const char* kStart = "Start and deadlines";
constexpr const char* kNodes = "Between nodes";
constexpr const char* kMachine = "The machine";
constexpr const char* kMemory = "Memory and results";
constexpr const char* kTuning = "Tuning";
constexpr const char* kLog = "Log";

const std::array kRows = {
    Row{"ORIEL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
        StringKind{&Settings::socket_ifname,
                   "names or prefixes separated by commas; `=` in front makes them exact, `^` "
                   "excludes them",
                   &names_something},
        "The network interfaces over which ranks may find each other.", kStart},
    Row{"ORIEL_TIMEOUT", nullptr, DurationKind{&Settings::timeout, 1ms, 24h},
        "How long one step of set-up may take: creating a communicator, registering a window.",
        kStart},
    Row{"ORIEL_COLLECTIVE_TIMEOUT", nullptr,
        OptionalDurationKind{&Settings::collective_timeout, 1ms, 30 * 24h},
        "How long a collective may wait for a rank that is alive but does not call; off waits for "
        "ever.",
        kStart},
    Row{"ORIEL_FABRIC_PROVIDER", nullptr,
        StringKind{&Settings::fabric_provider,
                   "a provider's name, as in fi_info; empty takes the best of efa, verbs and tcp"},
        "Which provider of libfabric carries messages between hosts. Others than those three are "
        "used only if named here; shm installs handlers of signals.",
        kNodes},
    Row{"ORIEL_NIC", nullptr, choice<&Settings::nic>(kNics),
        "What carries bytes between ranks of different nodes, the same on all ranks. soft is a NIC "
        "in software, over shared memory and libfabric. mlx5 has an mlx5 adapter execute the "
        "ranks' queues itself (never run on hardware yet: docs/mlx5.md). With mlx5, ORIEL_WIRE and "
        "ORIEL_NIC_PROCESS mean nothing, and ORIEL_PATHS names one interface at most.",
        kNodes},
    Row{"ORIEL_DOORBELL", nullptr, choice<&Settings::doorbell>(kDoorbells),
        "Who rings the doorbells of an adapter's queues (ORIEL_NIC=mlx5). gpu: whoever posts, a "
        "kernel or a CPU rank's thread; an error where it cannot reach the register. cpu: a "
        "thread of the library, which adds to the time of every operation. auto: gpu, or else cpu "
        "with a warning in the log.",
        kNodes},
    Row{"ORIEL_WIRE", nullptr, choice<&Settings::wire>(kWires),
        "What carries messages between ranks of different nodes, the same on all ranks. auto takes "
        "shared memory where they are one user's processes on one machine, in one network "
        "namespace, and libfabric elsewhere. fabric takes libfabric everywhere.",
        kNodes},
    Row{"ORIEL_PATHS", nullptr,
        StringKind{&Settings::paths,
                   "up to 4 names of interfaces separated by commas; auto; or empty", &names_paths},
        "The network interfaces that carry messages between hosts, best first and as many on all "
        "ranks: when one fails, queues go on by the next. Those of one network belong together, "
        "whatever their order; without route data, those at one position of the lists. auto "
        "takes two that fail apart, where there are such; empty takes the one of "
        "ORIEL_SOCKET_IFNAME, without a backup.",
        kNodes},
    Row{"ORIEL_NIC_PROCESS", nullptr, BoolKind{&Settings::nic_process},
        "Whether bytes of GPUs between nodes are copied by a process of its own (oriel-nic), which "
        "takes 500 MiB of each GPU. Otherwise a thread of the application's process copies "
        "them. cudaFree and the like may keep this thread waiting while a kernel waits for it.",
        kNodes},
    Row{"ORIEL_NIC_PROGRAM", nullptr,
        StringKind{
            &Settings::nic_program,
            "the path of oriel-nic; empty looks beside the library and in ../bin, ../../bin and "
            "../libexec/oriel"},
        "Path of the helper program oriel-nic, which copies data of GPUs for software NICs.",
        kNodes},
    Row{"ORIEL_HOSTID", "NCCL_HOSTID",
        StringKind{&Settings::host_id, "any text; ranks that share it count as one node"},
        "Replaces the identity of the machine, so that one machine can play several nodes.",
        kMachine},
    Row{"ORIEL_TOPO_FILE", "NCCL_TOPO_FILE",
        StringKind{
            &Settings::topo_file,
            "the path of a description in NCCL's or hwloc's XML; empty looks at the machine"},
        "Describes the machine: links, speeds, NUMA nodes, network cards. Who may map whose memory "
        "stays what the drivers say. oriel-topo reads it too. A pipe that nobody has open to "
        "write is refused.",
        kMachine},
    Row{"ORIEL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE",
        StringKind{&Settings::topo_dump_file, "the path of a file to write; empty writes none"},
        "Where the description of the machine goes, in NCCL's XML. One rank of each node writes "
        "it, once, after its first communicator has started, and so does oriel-topo. A file that "
        "cannot be written is a warning in the log then, and an error of oriel-topo.",
        kMachine},
    Row{"ORIEL_BACKEND", nullptr, choice<&Settings::backend>(kBackends),
        "Where ranks compute: on GPUs, on the CPU, or on GPUs if there are any.", kMachine},
    Row{"ORIEL_P2P_DISABLE", "NCCL_P2P_DISABLE", BoolKind{&Settings::p2p_disable},
        "Keeps GPUs from reading and writing each other's memory. What a rank sends to another of "
        "its node then goes through host memory, as it does where the hardware has no other way. "
        "One rank that asks for it decides for all.",
        kMachine},
    Row{"ORIEL_CPU_AFFINITY", nullptr, BoolKind{&Settings::cpu_affinity},
        "Whether Oriel's own threads keep to the processors near their GPUs, and host memory to "
        "the NUMA node near its user. The application's threads stay where they are.",
        kMachine},
    Row{"ORIEL_IGNORE_CPU_AFFINITY", "NCCL_IGNORE_CPU_AFFINITY",
        BoolKind{&Settings::ignore_cpu_affinity},
        "Lets Oriel's own threads run on all processors near their GPUs, also on those that the "
        "application keeps off.",
        kMachine},
    Row{"ORIEL_BIG_SIZE", nullptr, BytesKind{&Settings::big_size_bytes, 0, 1ULL << 46, 4 * kGiB},
        "The stretch of addresses reserved for one rank's windows; 0 lets Oriel choose.", kMemory},
    Row{"ORIEL_DETERMINISTIC", nullptr, BoolKind{&Settings::deterministic},
        "Adds in a fixed order, so that the bits of a result do not depend on size, algorithm or "
        "placement.",
        kMemory},
    Row{"ORIEL_SCRATCH_SIZE", nullptr,
        BytesKind{&Settings::scratch_size_bytes, kMiB, 64 * kMiB, 4096},
        "Most memory that a communicator sets aside for packets and unregistered buffers. GPUs of "
        "one node use 192 KiB for each CTA and rank, for at least 32 CTAs and 4 ranks. GPUs of "
        "several nodes use twice the setting. Channels of GPUs take a third of the setting in "
        "addition, 4.5 to 21 MiB. Programs with many communicators may save memory here, at the "
        "cost of bandwidth.",
        kMemory},
    Row{"ORIEL_ALGORITHM", nullptr, choice<&Settings::algorithm>(kAlgorithms),
        "Forces one algorithm for every collective that has it; auto lets the table choose, and "
        "only CPU ranks have eager.",
        kTuning},
    Row{"ORIEL_CTAS", nullptr, IntegerKind{&Settings::ctas, 0, 1024},
        "Forces the number of thread blocks of a collective; 0 lets the table choose. A number "
        "that "
        "the ranks' devices do not have is refused when a communicator starts.",
        kTuning},
    Row{"ORIEL_MAX_CTAS", "NCCL_MAX_CTAS", IntegerKind{&Settings::max_ctas, 0, 1024},
        "The most thread blocks of a collective on a GPU; 0 takes 32, or ORIEL_CTAS. Above 32 "
        "large "
        "messages are a few percent faster, and fewer communicators fit on a GPU at once. The "
        "ranks take the least that one of them asks for or that the GPU has room for.",
        kTuning},
    Row{"ORIEL_CHUNK", nullptr, BytesKind{&Settings::chunk_bytes, 0, kMiB, 128},
        "Forces the size of the pieces in which large messages are streamed; 0 lets the table "
        "choose. It is an upper limit: pieces are smaller where the scratch memory has no room.",
        kTuning},
    Row{"ORIEL_TABLE", nullptr,
        StringKind{&Settings::table_path, "the path of a file; empty takes the built-in table"},
        "The measured table from which algorithms are chosen; all ranks must name the same one.",
        kTuning},
    Row{"ORIEL_GRAPH_MIXING_SUPPORT", "NCCL_GRAPH_MIXING_SUPPORT",
        choice<&Settings::graph_mixing>(kGraphMixings),
        "Whether launches of CUDA graphs that hold calls of a communicator run in the order of the "
        "launches, also beside plain calls. 1 adds a wait and a record of an event to each graph. "
        "0 leaves the order to the user. auto is 0 for communicators whose graphUsageMode is 0 or "
        "1, else 1.",
        kTuning},
    Row{"ORIEL_CTA_POLICY", "NCCL_CTA_POLICY", choice<&Settings::cta_policy>(kCtaPolicies),
        "zero: copy engines carry out all-gathers, all-to-alls, gathers and scatters of GPUs of "
        "one node, and multiprocessors stay free. It takes long blocks in symmetric windows, and "
        "all ranks must ask for it (docs/collectives.md). efficiency is accepted and changes "
        "nothing; auto leaves it to CTAPolicy of a communicator's configuration.",
        kTuning},
    Row{"ORIEL_LOG", "NCCL_DEBUG", choice<&Settings::log_level>(kLogLevels),
        "What the library prints. The default, alert, is what a user must know without asking: a "
        "stalled job, a misspelt setting.",
        kLog},
    Row{"ORIEL_LOG_FILE", "NCCL_DEBUG_FILE",
        StringKind{&Settings::log_file,
                   "a path, in which %h becomes the host's name and %p the process id"},
        "Where the log goes instead of standard error.", kLog},
    Row{"ORIEL_DUMP_DIR", nullptr,
        StringKind{&Settings::dump_dir, "the path of a folder that is there; empty writes nothing"},
        "Where each rank writes its last 1,024 calls on an error, an abort or a stall. oriel-info "
        "--merge compares the files. What cannot be written is a warning in the log. Each call of "
        "GPU ranks takes one driver call more.",
        kLog},
};

}  // namespace

std::span<const Row> rows() {
  return kRows;
}

}  // namespace oriel::settings_table
