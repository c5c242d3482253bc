#!/bin/bash
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that need GPUs, one step after the other, without nccl-tests and most framework
# scripts. --help says how.
set -u

help='usage: run_all.sh [--help] [--version] BUILD_FOLDER [LOG_FOLDER [NAME...]]
Runs the tests that need GPUs, one step after the other, without nccl-tests and most scripts of
test/frameworks. The build folder may have been made on another machine; needed are its bin/ and lib/, and for pages its examples/. The source tree must be
present.

Prints one line per step: PASS, FAIL or SKIP, seconds, name. Prints the end of the output of failed
steps, and the figures that some other steps measure. Whole outputs go to LOG_FOLDER/run_all.log.
Every step has a time limit, after which all its processes are killed. NAME... restricts the run to
these steps. SIGTERM ends the run and the current step, which then counts as failed.
Exit status: 0; 1 if a step failed or SIGTERM ended the run; 2 for wrong arguments.'

misuse() {
  printf 'run_all.sh: %s\nrun_all.sh --help says which arguments it takes\n' "$1" >&2
  exit 2
}
for word in "$@"; do
  case $word in
    --help | -h) printf '%s\n' "$help"; exit ;;
    --version)
      printf 'run_all.sh (Oriel) %s\n' "$(sed -n 's/^project(oriel VERSION \([0-9.]*\).*/\1/p' \
        "$(dirname "$0")/../../CMakeLists.txt")"
      exit ;;
    -*) misuse "unknown flag $word" ;;
  esac
done
[ $# -gt 0 ] || misuse "which build folder?"
[ -d "$1" ] || misuse "there is no folder $1"

# Keeps NVLink multicast off, whatever a program requests.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
logs=${2:-$(mktemp -d)}
mkdir -p "$logs"
log=$(mktemp)  # output of the current step
: >"$logs/run_all.log"
trap 'rm -f "$log"' EXIT
wanted=" ${*:3} "
if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
  gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
else
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
fi
# Ranks that share a GPU take turns on it, so fewer repetitions are run there.
[ "$gpus" -ge 2 ] || export ORIEL_TEST_PERCENT=${ORIEL_TEST_PERCENT:-25}
characters_left=7500  # characters of output that failures and figures may still take
passed=0 failed=0 skipped=0
child= is_cut_off=
trap 'is_cut_off=1; [ -z "$child" ] || kill "$child" 2>/dev/null' TERM

# show MOST: prints the last MOST characters of standard input, or fewer if less space is left.
# Indentation is added to them; lines are cut after 400 characters.
show() {
  local text most=$1
  [ "$most" -le "$characters_left" ] || most=$characters_left
  [ "$most" -gt 0 ] || return 0
  text=$(tail -c "$most" | cut -c 1-400 | sed 's/^/    /')
  [ -n "$text" ] || return 0
  printf '%s\n' "$text"
  characters_left=$((characters_left - ${#text}))
}

# step NAME LIMIT_SECONDS COMMAND...: runs one step; exit status 77 means skipped.
step() {
  local name=$1 limit=$2 begin status seconds
  shift 2
  [ -z "$is_cut_off" ] || return 0
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  begin=$(date +%s%N)
  LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    timeout -k 3 "$limit" "$@" >"$log" 2>&1 </dev/null &
  child=$!
  wait "$child"
  status=$?
  if [ -n "$is_cut_off" ]; then
    wait "$child"  # the trap has sent it SIGTERM
    status=$?
    case $status in 0 | 77) status=143 ;; esac  # it may have been about to end
  fi
  child=
  seconds=$(printf '%d.%d' $((($(date +%s%N) - begin) / 1000000000)) \
    $((($(date +%s%N) - begin) / 100000000 % 10)))
  { echo "==== $name: status $status, $seconds s" && cat "$log"; } >>"$logs/run_all.log"
  case $status in
    0)
      passed=$((passed + 1))
      echo "PASS ${seconds}s $name"
      grep -E '^(1 GiB windows|[0-9]+ windows|one_shot|\{"ranks"|two_shot|stream|[0-9]+ elements|[0-9]+ groups|  PyTorch|handles travel|put of |floor|world_put|registration on full|(threads|processes) on [0-9]+ GPUs)' \
        "$log" | show 900
      ;;
    77)
      skipped=$((skipped + 1))
      echo "SKIP ${seconds}s $name: $(grep -m 1 -i skipped "$log" | cut -c 1-200)"
      ;;
    *)
      failed=$((failed + 1))
      local why=""
      [ $status -lt 124 ] || why="killed or past its limit of $limit s, "
      [ -z "$is_cut_off" ] || why="cut off, "
      echo "FAIL ${seconds}s $name: ${why}status $status"
      grep -v '^[~ .=-]*$' "$log" | show 1500
      ;;
  esac
}

# tests NAME LIMIT_SECONDS COMMAND...: a step of a test program, which logs the time of each test.
tests() {
  step "$@" -d yes
}

# sanitize TOOL: runs oriel-perf at small sizes under a tool of compute-sanitizer. The first run
# takes the algorithms of the table: one_shot, and two_shot if there are more than 2 ranks. The
# next two take stream, the others exchanges and the lines of other collectives.
sanitize() {
  local tool=$1 sanitizer out
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  [ -x "$sanitizer" ] || { echo "skipped: there is no compute-sanitizer" && return 77; }
  local run=("$sanitizer" --tool "$tool" --report-api-errors no --target-processes all
    --error-exitcode 9 "$build/bin/oriel-perf" --backend cuda
    --ranks $((gpus < 2 ? 2 : gpus < 4 ? gpus : 4)) -n 2 -w 1 --rounds 1)
  out=$(mktemp)
  for form in "all_reduce -d float,int8 -b 8 -e 512K -f 256" \
    "all_reduce -d float,int8 --sizes 1028,262144 --env ORIEL_ALGORITHM=stream --register both" \
    "all_reduce -d float,int8 --sizes 1028,262144 --env ORIEL_ALGORITHM=stream --register none" \
    "alltoall --sizes 1000,300000,4000000 --register none" "sendrecv --sizes 1000,4000000" \
    "broadcast --sizes 1000,4000000 --register none" "reduce_scatter --sizes 1000,4000000" \
    "all_gather --sizes 1000,4000000" "reduce --sizes 1000,4000000 --register none" \
    "gather --sizes 1000,4000000" "scatter --sizes 1000,4000000 --register none"; do
    # shellcheck disable=SC2086  # options in one string
    "${run[@]}" $form 2>&1 | tee "$out"
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    grep -q 'SUMMARY: 0' "$out" || { echo "no report of $tool" && return 1; }
    ! grep -E 'SUMMARY: [1-9]' "$out" || return 1
  done
  rm -f "$out"
}
# topology: prints the outputs of oriel-topo and of the vendor's tool, and the log of a communicator's
# start, which has the time of discovery.
topology() {
  "$build/bin/oriel-topo" --width 200 && nvidia-smi topo -m &&
    ORIEL_LOG=INFO "$build/bin/oriel-perf" all_reduce --backend cuda \
      --ranks $((gpus < 4 ? gpus : 4)) --sizes 8 -n 1 -w 1 --rounds 1 2>&1 |
      grep -E 'found the GPUs|joined|LSA team|paths|Avg'
}
# page FILE: runs the console blocks of a page that need GPUs, with the build folder's examples/.
page() {
  [ -x "$build/examples/late_rank" ] || { echo "skipped: the examples are not built" && return 77; }
  python3 "$here/../examples/page_test.py" "$here/../../$1" "$build" --gpus
}
export -f sanitize topology page
export build gpus here

echo "$gpus GPU(s): $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | tr -s ' ' | tr '\n' ';')"
bin=$build/bin
tests gpu_arithmetic 40 "$bin/test_gpu_arithmetic"
tests device_cuda 60 "$bin/test_device_cuda"
tests queues 120 "$bin/test_device_queue_cuda"
[ ! -x "$bin/queue_bench" ] ||
  step queue_bench 200 "$bin/queue_bench" --least-ms 3 --out "$logs/queue_bench.jsonl"
step topology 60 bash -c topology
tests memory_cuda 60 "$bin/test_memory_cuda"
tests registration_gpu 90 "$bin/test_registration_gpu"
tests init_faults 240 "$bin/test_init_faults_gpu"
tests all_reduce 300 "$bin/test_gpu_all_reduce"
tests grid 60 "$bin/test_gpu_grid"
tests order 90 "$bin/test_gpu_order"
tests contexts 60 "$bin/test_gpu_contexts"
tests budget 120 "$bin/test_gpu_budget"
tests split 60 "$bin/test_gpu_split"
tests faults 200 "$bin/test_gpu_faults"
tests different_calls 150 "$bin/test_gpu_different_calls"
tests groups 60 "$bin/test_gpu_groups"
tests register 90 "$bin/test_gpu_register"
tests nic 120 "$bin/test_gpu_nic"
tests collectives 500 "$bin/test_gpu_collectives"
tests exchange 200 "$bin/test_gpu_exchange"
tests large_counts 200 "$bin/test_gpu_large_counts"
tests random_groups 300 "$bin/test_gpu_random_groups"
tests world 200 "$bin/test_gpu_world"
tests paths 150 "$bin/test_gpu_paths"
step enqueue_cost 60 "$bin/enqueue_cost" --out "$logs/enqueue_cost.jsonl"
tests nic_figures 120 "$bin/test_gpu_nic" "[figures]"
tests world_figures 120 "$bin/test_gpu_world" "[figures]"
step nodes_stages 120 python3 "$here/../../benchmarks/network/nodes_stages.py" --build "$build" \
  --ranks $((gpus < 4 ? gpus : 4)) --out "$logs/nodes_stages.json"
step program_of_own_header 40 "$bin/test_program_oriel_header"
[ ! -x "$bin/test_program_nvidia_header" ] ||
  step program_of_nvidia_header 40 "$bin/test_program_nvidia_header"
step program_preloaded 40 "$bin/oriel-run" --preload "$bin/test_program_oriel_header"
step page_hang 120 bash -c 'page docs/hang.md'
step page_own_kernel 120 bash -c 'page examples/03_own_kernel/README.md'
step program_built_here 100 sh "$here/build_with_nvidia_header.sh" "$build"
step expandable_segments 200 python3 "$here/expandable_segments.py" "$build"
# The other scripts of test/frameworks take minutes; run them with frameworks/run.py.
step frameworks 200 python3 "$here/../frameworks/run.py" --build "$build" --logs "$logs/frameworks" \
  --only torch_import torch_collectives
step memcheck 150 bash -c 'sanitize memcheck'
step racecheck 150 bash -c 'sanitize racecheck'
step synccheck 150 bash -c 'sanitize synccheck'
echo "$passed passed, $failed failed, $skipped skipped; whole outputs in $logs/run_all.log"
[ -z "$is_cut_off" ] || echo "cut off by SIGTERM: some steps have not run"
[ "$failed" -eq 0 ] && [ -z "$is_cut_off" ]
