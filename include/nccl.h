// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#ifndef NCCL_H_
#define NCCL_H_

/// Declares the C interface of Oriel's libnccl.so.2. Names, values and layouts are those of NCCL
/// 2.28.9, so a program built against either header runs on this library. The header is valid in
/// C99 and C++. It needs no CUDA header, and may be included before or after CUDA's headers.
///
/// Terms. A *rank* is one participant of a communicator, numbered from 0. *Local* calls concern the
/// calling rank alone. *Collective* calls must be made by every rank of the communicator, in the
/// same order. A thread that makes them for several communicators does so in a group. A
/// *point-to-point* call matches a call of one peer. *Blocking* calls may wait for other ranks or
/// for a device. Others return at once: only the driver and the operating system take time.
///
/// Without a GPU, ranks live on CPUs. Buffers are then host memory, and every stream argument must
/// be null. Calls that move data block: they have finished when they (or their group's end) return.
///
/// Errors. Every call returns ncclSuccess or an error code; ncclGetLastError returns the
/// description. A set-up call that fails on one rank returns the same error on all ranks and leaves
/// nothing behind. Exception: a rank dies or stops before it sends its last set-up message. Ranks
/// with all other messages then return ncclSuccess. ncclCommGetAsyncError soon stores the error.
///
/// Two kinds of errors are local: the call fails on its own rank at once, and no peer is notified.
/// - An init call has an invalid or missing id, or an invalid rank or number of ranks. Its peers
///   wait until ORIEL_TIMEOUT has passed.
/// - A collective, send or receive has an argument that is invalid by itself. The call has not
///   started, and may be made again with correct arguments.
///
/// Error codes. Any call may return ncclInvalidArgument, or ncclInvalidUsage for an invalid
/// environment value. Calls that allocate or wait may also return ncclSystemError and, with a GPU,
/// ncclUnhandledCudaError. If a communicator has become unusable, its calls return the cause:
/// ncclRemoteError, ncclSystemError or ncclInvalidUsage. ncclInternalError is a bug in Oriel. No
/// call throws, exits or installs a signal handler. By default only alerts are printed.
///
/// Non-blocking communicators (ncclConfig_t::blocking is 0). ncclCommInitRankConfig,
/// ncclCommInitRankScalable, ncclCommSplit, ncclCommFinalize and ncclCommWindowRegister, or the end
/// of their group, return ncclInProgress and continue in the background. Each communicator
/// progresses independently. ncclCommGetAsyncError reports when the call has ended, and with which
/// result. Until then other calls on the communicator return ncclInvalidUsage. Exceptions are
/// queries, ncclCommDeregister, ncclRedOpCreatePreMulSum, ncclRedOpDestroy, ncclCommDestroy,
/// ncclCommAbort and ncclCommRevoke. Collectives block as on a blocking communicator. If a group
/// contains a collective of the communicator, a registration or finalization in the same group has
/// ended when ncclGroupEnd returns.
///
/// Thread safety. Any thread may make every call. Calls on one communicator come from one thread at
/// a time. Exceptions: any thread may call ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError
/// at any time. All other calls may run in several threads at the same time.
///
/// Each ncclX has a twin pncclX that does the same: a profiler may replace ncclX and call pncclX.
///
/// Example: replaces the floats of each rank by their sums over all ranks.
/// ```cpp
/// ncclResult_t sum_once(ncclUniqueId id, int ranks, int rank, float* data, size_t count) {
///   ncclComm_t comm;
///   ncclResult_t result = ncclCommInitRank(&comm, ranks, id, rank);
///   if (result != ncclSuccess) return result;
///   result = ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, NULL);
///   const ncclResult_t ended = ncclCommDestroy(comm);  // waits until `data` holds the sums
///   return result != ncclSuccess ? result : ended;
/// }
/// ```

#include <limits.h>
#include <stddef.h>

#define NCCL_MAJOR 2    ///< version of NCCL whose interface this header declares: 2.28.9
#define NCCL_MINOR 28   ///< second number of this version
#define NCCL_PATCH 9    ///< third number of this version
#define NCCL_SUFFIX ""  ///< no suffix: the version is a release

/// Encodes a version as one number, such as 22809 for 2.28.9. Up to 2.8 factors are smaller.
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE 22809  ///< NCCL_VERSION of the three numbers above

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifndef __DRIVER_TYPES_H__  // the guard of the CUDA header that declares the same type
typedef struct CUstream_st* cudaStream_t;  ///< handle of a CUDA stream
#endif

/// Handle of a communicator: a ticket, no address. Calls refuse that of a destroyed communicator.
typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL  ///< no communicator

/// Handle of a registered buffer: the address of its descriptor, in memory that kernels read.
typedef struct ncclWindow_vidmem* ncclWindow_t;

#define NCCL_UNIQUE_ID_BYTES 128  ///< size of ncclUniqueId in bytes
/// Contains the address at which the ranks of a new communicator meet, and a secret that
/// authenticates them. Copy all 128 bytes to the other ranks over a channel that you trust.
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];  ///< content; programs only copy it
} ncclUniqueId;

/// Results of calls. ncclGetLastError returns the description of an error.
typedef enum {
  ncclSuccess = 0,             ///< no error
  ncclUnhandledCudaError = 1,  ///< CUDA refused a call
  ncclSystemError = 2,         ///< the operating system refused a call, or a deadline passed
  ncclInternalError = 3,       ///< an invariant of the library does not hold: please report it
  ncclInvalidArgument = 4,     ///< an argument is invalid by itself
  ncclInvalidUsage = 5,        ///< the call does not fit the state, or ranks disagree
  ncclRemoteError = 6,         ///< another rank failed, died or aborted
  ncclInProgress = 7,  ///< not an error: a call on a non-blocking communicator has not ended yet
  ncclNumResults = 8   ///< number of results; all values are below it
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN  ///< marks a number in ncclConfig_t as not set
#define NCCL_CONFIG_UNDEF_PTR NULL     ///< marks a pointer in ncclConfig_t as not set

#define NCCL_UNDEF_FLOAT -1.0f  ///< marks a field of ncclSimInfo_t as unknown

/// Color of a rank that takes part in ncclCommSplit but not in a new communicator.
#define NCCL_SPLIT_NOCOLOR -1

#define NCCL_WIN_DEFAULT 0x00         ///< flags of ncclCommWindowRegister: none
#define NCCL_WIN_COLL_SYMMETRIC 0x01  ///< ranks pass collectives the same offset in the window
/// Required alignment in bytes, for a window's first address and for its offset in the allocation.
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00     ///< ncclConfig_t::CTAPolicy: no preference
#define NCCL_CTA_POLICY_EFFICIENCY 0x01  ///< hint: Oriel's measured table chooses the CTAs
#define NCCL_CTA_POLICY_ZERO 0x02        ///< copy engines instead of thread blocks where possible

/// Flags of ncclCommShrink, which this version of Oriel does not support.
#define NCCL_SHRINK_DEFAULT 0x00  ///< in NCCL: wait for the parent's work
#define NCCL_SHRINK_ABORT 0x01    ///< in NCCL: abort the parent's work first

#define NCCL_REVOKE_DEFAULT 0x00  ///< the only flag of ncclCommRevoke

/// Settings of a communicator. Start from NCCL_CONFIG_INITIALIZER and set the fields that you need.
/// Oriel honours `blocking`, `minCTAs`, `maxCTAs`, `commName`, and NCCL_CTA_POLICY_ZERO in
/// `CTAPolicy`. From later versions of the structure it honours `graphUsageMode` and
/// `graphStreamOrdering` (see ncclAllReduce). All other fields are hints without effect: a log line
/// at ORIEL_LOG=info names each one that is set. If a number of CTAs is out of range, the nearest
/// allowed value is used and logged. A `blocking` other than 0 and 1, and a structure that was not
/// initialised, are ncclInvalidArgument. Oriel accepts structures of NCCL 2.14 to 2.32.3, and reads
/// only the fields of their version. Further fields of a longer structure are ignored, and one
/// warning per process says so.
typedef struct ncclConfig_v22800 {
  size_t size;              ///< the initializer sets this and the next two; do not change them
  unsigned int magic;       ///< marks the structure as initialised
  unsigned int version;     ///< version of the header with which the program was built
  int blocking;             ///< 1: calls return when done (the default); 0: they may be in progress
  int cgaClusterSize;       ///< hint: thread blocks in a cluster
  int minCTAs;              ///< minimum number of thread blocks of a collective, 1 to 1024
  int maxCTAs;              ///< maximum, 1 to 1024; an all-reduce on GPUs has one more CTA
  const char* netName;      ///< hint: name of the network; may be freed after the call
  int splitShare;           ///< hint: share resources with communicators split from this one
  int trafficClass;         ///< hint: traffic class of network packets
  const char* commName;     ///< name used in messages; may be freed after the call
  int collnetEnable;        ///< hint: 1: let network switches reduce
  int CTAPolicy;            ///< one of NCCL_CTA_POLICY_*
  int shrinkShare;          ///< hint: share resources with communicators shrunk from this one
  int nvlsCTAs;             ///< hint: thread blocks of collectives that use NVLink multicast
  int nChannelsPerNetPeer;  ///< hint: channels to each rank that is reached over a network
  int nvlinkCentricSched;   ///< hint: 1: order the steps for NVLink rather than for the network
} ncclConfig_t;

/// Initial value of an ncclConfig_t: no field is set.
#define NCCL_CONFIG_INITIALIZER                                                         \
  {                                                                                     \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                                   \
  }

/// Result of ncclGroupSimulateEnd. Start from NCCL_SIM_INFO_INITIALIZER.
typedef struct ncclSimInfo_v22200 {
  size_t size;           ///< the initializer sets this and the next two; do not change them
  unsigned int magic;    ///< marks the structure as initialised
  unsigned int version;  ///< version of the header with which the program was built
  float estimatedTime;   ///< microseconds of the group's calls; see ncclGroupSimulateEnd
} ncclSimInfo_t;

/// Initial value of an ncclSimInfo_t: the time is unknown.
#define NCCL_SIM_INFO_INITIALIZER                                                        \
  {                                                                                      \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_UNDEF_FLOAT,                                                                \
  }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;  ///< only has the size of ncclRedOp_t
/// Reduction operations. Values from ncclNumOps on are created by ncclRedOpCreatePreMulSum.
typedef enum {
  ncclSum = 0,     ///< sum; integers wrap
  ncclProd = 1,    ///< product; integers wrap
  ncclMax = 2,     ///< NaN if any rank has NaN, as for ncclMin
  ncclMin = 3,     ///< minimum; -0 is below +0, as for ncclMax
  ncclAvg = 4,     ///< sum / ranks; for integers the wrapped sum, rounded toward zero
  ncclNumOps = 5,  ///< number of operations above
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))  ///< largest value
} ncclRedOp_t;

/// Element types. Counts are always in elements. The 8-bit floats saturate: a result that is too
/// large, including infinity, becomes the largest finite value.
typedef enum {
  ncclInt8 = 0,         ///< signed, 1 byte
  ncclChar = 0,         ///< ncclInt8
  ncclUint8 = 1,        ///< unsigned, 1 byte
  ncclInt32 = 2,        ///< signed, 4 bytes
  ncclInt = 2,          ///< ncclInt32
  ncclUint32 = 3,       ///< unsigned, 4 bytes
  ncclInt64 = 4,        ///< signed, 8 bytes
  ncclUint64 = 5,       ///< unsigned, 8 bytes
  ncclFloat16 = 6,      ///< IEEE binary16, 2 bytes
  ncclHalf = 6,         ///< ncclFloat16
  ncclFloat32 = 7,      ///< IEEE binary32, 4 bytes
  ncclFloat = 7,        ///< ncclFloat32
  ncclFloat64 = 8,      ///< IEEE binary64, 8 bytes
  ncclDouble = 8,       ///< ncclFloat64
  ncclBfloat16 = 9,     ///< upper half of a binary32, 2 bytes
  ncclFloat8e4m3 = 10,  ///< 4 exponent and 3 mantissa bits, largest value 448; 1 byte
  ncclFloat8e5m2 = 11,  ///< 5 exponent and 2 mantissa bits, largest finite value 57344; 1 byte
  ncclNumTypes = 12     ///< number of types; all values are below it
} ncclDataType_t;

/// Memory kind of a scalar argument, which determines when the scalar is read.
typedef enum {
  ncclScalarDevice = 0,  ///< memory that the device can read; read by each collective that uses it
  ncclScalarHostImmediate = 1  ///< host memory; read before the call returns
} ncclScalarResidence_t;

/// Stores NCCL_VERSION_CODE of this library's interface, 22809. Local; returns at once. Error:
/// ncclInvalidArgument if `version` is null.
ncclResult_t ncclGetVersion(int* version);
ncclResult_t pncclGetVersion(int* version);

/// Creates the id of a future communicator and opens the meeting point on this host. One process
/// calls this function and sends the 128 bytes to all ranks. An id serves one communicator, or one
/// failed attempt to start one. It expires if no rank has joined 10 minutes after its creation.
/// Init with a used or expired id is an error. The calling process must live and run until all
/// ranks have joined. Local; returns at once.
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);

/// Joins the communicator `commId` as `rank` of `nranks` and stores its handle. The rank uses the
/// thread's current CUDA device, or the CPU if there is no GPU. Collective and blocking: returns
/// when all ranks have joined. If the start fails, all ranks get the same error by the deadline of
/// set-up (ORIEL_TIMEOUT), and the handle is null. Ranks may be processes, threads, or several
/// calls of one thread inside a group. An LSA team (ranks that load and store each other's memory)
/// can have at most 8 GPU ranks or 64 CPU ranks. More are ncclInvalidUsage.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

/// Joins as ncclCommInitRank does, with settings. A null `config` sets nothing.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config);

/// Joins as ncclCommInitRankConfig does, for jobs that created several ids. All ranks pass the same
/// `nId` ids, at least 1 and at most `nranks`. The ranks meet at the first id, so one id is enough.
/// The other ids are only checked, and their meeting points stay open until they expire.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config);

/// Creates all `ndev` ranks of a communicator in this process and stores their handles in comm[0]
/// to comm[ndev - 1]. Rank i uses device devlist[i], or device i if `devlist` is null. Without a
/// GPU `devlist` must be null. Local: no other process takes part. Blocking: returns when all ranks
/// have joined, or with an error by the deadline of set-up. After a failure all handles are null.
/// Inside a group ncclGroupEnd does the work.
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

/// Completes the work that was enqueued on this communicator. Afterwards only queries,
/// deregistrations, ncclCommDestroy and ncclCommAbort are allowed. Local: waits for this rank's own
/// work, not for a call of another rank. The ranks of several communicators may therefore finalize
/// them in any order. Among nodes the call waits for its peers to receive the data sent to them.
/// GPU ranks wait at most 5 seconds, and CPU ranks at most 5 seconds for each peer. Later data
/// stays in flight, and ncclCommDestroy waits for it again. Blocking; on a non-blocking
/// communicator the call continues in the background. If another rank later makes a call that needs
/// this rank, that call gets ncclRemoteError. The error may also become this rank's asynchronous
/// error. If ncclGroupEnd refuses a group, the group finalizes nothing. If a call of the group
/// fails later, its finalizations still run.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/// Frees this rank's part of a communicator and the windows still registered in it. Later calls
/// with the handle are errors; on a GPU also one of another thread that is not enqueued yet. A null
/// handle is allowed. Local: other ranks need not call it. Blocking: waits first for the work
/// enqueued here, and so for the ranks on which this work depends. If the communicator is unusable,
/// this wait takes at most 5 seconds. Memory that a kernel may still use is freed when the kernel
/// has ended. A graph that holds a call may be launched until it is destroyed, and keeps the memory
/// until then. Takes up to 5 seconds more if a departed rank of another host may still read memory
/// of this rank. All ranks make the same collective calls before they destroy the communicator. A
/// rank that waits in a call for a departed rank gets ncclRemoteError. A call in progress on a non-
/// blocking communicator is not waited for: it ends in the background and stores no windows any
/// more. Inside a group the communicator ends after all other requests, even if the group is
/// refused. A later call on it in the same group is ncclInvalidUsage.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/// Aborts the running work of this communicator without waiting for other ranks, and frees the
/// communicator. Outputs of interrupted collectives are undefined. Local; any thread may call it.
/// The other ranks get ncclRemoteError; calls in progress on this rank get ncclInvalidUsage. If a
/// group is still starting this blocking communicator, the abort ends the group's set-up. Blocks
/// for at most 250 ms. Memory that a kernel or a graph may still use is freed when that kernel or
/// graph has ended. If a graph that holds a call is launched later, it ends at once. Inside a group
/// the abort runs at the end of the group, as ncclCommDestroy does. A null handle is allowed.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/// Aborts the running work of this communicator as ncclCommAbort does, but keeps the handle.
/// Queries, deregistrations, ncclCommDestroy and ncclCommAbort still work. Calls that move data,
/// split, register or finalize fail and name the cause. `revokeFlags` is NCCL_REVOKE_DEFAULT.
/// Local; any thread may call it. Blocks until no kernel of the communicator runs any more, or
/// returns ncclSystemError after 5 seconds. After a revocation ncclCommGetAsyncError stores
/// ncclSuccess on this rank. The other ranks get ncclRemoteError until they revoke too. A start or
/// registration in progress ends with an error. A second revocation is ncclInvalidUsage, and so is
/// one after ncclCommFinalize. Null is allowed.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/// Creates a communicator of the ranks that pass the same `color` and stores its handle. The new
/// ranks are ordered by `key`, then by rank in this communicator. `color` is 0 or more, or
/// NCCL_SPLIT_NOCOLOR, which gives the rank a null handle. `key` is any number. A null `config`
/// inherits the settings of this communicator except its name. The new communicator uses the same
/// device, and outlives the destruction or abort of this one. Collective over this communicator;
/// blocks as ncclCommInitRank does. If the arguments of one rank are invalid, all ranks get the
/// same error. If a later step fails, the ranks of that color get the same error. Several splits in
/// a group run in the order of the calls. With a non-blocking communicator the handle is stored at
/// once, and both communicators are in progress.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config);

/// Would create a communicator without the listed ranks. This version of Oriel does not support it:
/// returns ncclInvalidUsage on every rank and stores a null handle. Local; returns at once. Start a
/// communicator of the remaining ranks with ncclGetUniqueId and ncclCommInitRank instead.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);

/// Stores ncclSuccess, ncclInProgress, or the error that has made this communicator unusable, such
/// as the death of a rank. On a non-blocking communicator the error of its last call is stored as
/// well, until the next call. Local; returns at once; any thread may call it.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

/// Stores the number of ranks. Local; returns at once. Error: ncclInvalidUsage early in a start.
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);

/// Stores the CUDA device of this rank, or -1 without a GPU. Local; returns at once.
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);

/// Stores this rank's number. Local; returns at once.
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);

/// Returns the name of `result`: a constant string, never null. Local; returns at once; any thread.
const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);

/// Returns a description of the last error: the call, the first cause, the rank on which it arose,
/// and a hint. If an error has made `comm` unusable, it is this error. Otherwise it is the last
/// error that a call of this thread returned or ncclCommGetAsyncError stored. `comm` may be null.
/// The text is never null, and empty if there was no error. Valid until this thread's next failing
/// call, or next call of this function or ncclCommGetAsyncError. Local; returns at once.
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);

/// Does nothing: the library reads ORIEL_LOG and ORIEL_LOG_FILE once per process. NCCL keeps the
/// function for old programs only. Local; returns at once.
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);

/// Allocates at least `size` bytes that can be registered as a window, aligned for windows. The
/// memory is on the current device, or shared host memory without a GPU. Local; returns at once,
/// and does not synchronise the device. A size of 0 is refused, as is host memory beyond what the
/// machine or a control group has left. A process forked later shares the memory and may use and
/// free it, but not register it: allocate after the fork.
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);

/// Frees memory of ncclMemAlloc. Null is allowed. Any other address is refused, as is memory with a
/// registered window: deregister it first. Local; blocks only if the driver waits for the GPU.
ncclResult_t ncclMemFree(void* ptr);
ncclResult_t pncclMemFree(void* ptr);

/// Announces that collectives of `comm` will use `size` bytes at `buff`, and stores a handle for
/// ncclCommDeregister. Any memory is allowed. The registration changes neither results nor speed.
/// Local; returns at once, also inside a group. Those left end with `comm`.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);

/// Ends a registration of ncclCommRegister with `comm`. Any other handle is refused; null is
/// allowed. May be called after ncclCommFinalize. Local; returns at once.
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);

/// Registers `size` bytes at `buff` as a window, which the other ranks can access. Collective: all
/// ranks pass the same size and flags, and each rank its own address. The address is a multiple of
/// NCCL_WIN_REQUIRED_ALIGNMENT. The memory comes from ncclMemAlloc, or from a CUDA virtual-memory
/// allocation that was created exportable. Memory of cudaMalloc or malloc is refused. Several
/// windows may share an allocation, nest or coincide. Blocking outside a group. Inside a group
/// `win` is stored when the group ends. On a non-blocking communicator it is stored before
/// ncclCommGetAsyncError stores ncclSuccess.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags);

/// Ends a registration. Local, in any order, once no rank uses the window any more. Until all have
/// deregistered it, none may pass its memory to a call. Blocks only while a NIC accesses the memory
/// or the driver waits for the GPU. ncclInvalidArgument if `win` is null or no window of `comm`.
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/// Forward-declares types of NVIDIA's device headers, which declare the next two functions as well.
struct ncclDevComm;
struct ncclDevCommRequirements;

/// Would create a device communicator. This version of Oriel does not support it: returns
/// ncclInvalidUsage on every rank and stores nothing. Local; returns at once. Use Oriel's own
/// device headers instead (oriel::Communicator::device_comm).
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements* reqs,
                               struct ncclDevComm* outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements* reqs,
                                struct ncclDevComm* outDevComm);

/// Returns ncclInvalidUsage, since ncclDevCommCreate creates nothing. Local; returns at once.
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm* devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm* devComm);

/// Creates an operation that multiplies this rank's elements by `*scalar`, then sums over the
/// ranks. The scalar is of type `datatype`, to which products are rounded before the sum. Ranks may
/// have different scalars. Serves only collectives of `comm` on `datatype`. Local; returns at once.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/// Ends an operation of ncclRedOpCreatePreMulSum. Earlier calls still run. Local; returns at once.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/// Reduces `count` elements of every rank's `sendbuff`, element by element, and stores the result
/// in every `recvbuff`. Every rank gets the same bits. Collective: all ranks pass the same count,
/// type and operation. Buffers are aligned to the element size, and either equal or disjoint. Each
/// may be registered or not. With a GPU the call enqueues the work on `stream`, and blocks only
/// while the queue of `stream` is full. `recvbuff` holds the result when the stream has reached the
/// end of this work. Without a GPU the call blocks until the result is there. The call may be
/// captured into a graph. Calls of one communicator run one after the other, in the order of the
/// calls, whatever their streams. Launches of graphs that hold calls of the communicator run in the
/// order of the launches, also relative to calls outside graphs. All ranks call and launch in the
/// same order. With NCCL_GRAPH_MIXING_SUPPORT=0, or graphUsageMode 0 or 1, the caller orders graph
/// launches, on one stream or with events. With graphStreamOrdering 0 besides, the caller also
/// orders captured calls on different streams of one capture.
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream);

/// Gathers the `sendcount` elements of every rank's `sendbuff` in every `recvbuff`. There the
/// elements of rank r begin at element `r * sendcount`. Collective: all ranks pass the same count
/// and type. Buffers, streams and blocking are as for ncclAllReduce. In place: `sendbuff` is
/// `recvbuff + rank * sendcount` elements.
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/// Reduces every rank's `sendbuff`, which holds `recvcount` elements for each rank, element by
/// element. Rank r receives the `recvcount` result elements that begin at `r * recvcount`.
/// Collective: all ranks pass the same count, type and operation. Buffers, streams and blocking are
/// as for ncclAllReduce. In place: `recvbuff` is `sendbuff + rank * recvcount` elements.
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

/// Reduces `count` elements of every rank's `sendbuff`, element by element, and stores the result
/// in the `recvbuff` of rank `root`. Collective: all ranks pass the same count, type, operation and
/// root. `recvbuff` is used at the root only. Buffers, streams and blocking are as for
/// ncclAllReduce. In place: `sendbuff` and `recvbuff` of the root are equal.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream);

/// Copies `count` elements of the `sendbuff` of rank `root` into every `recvbuff`. Collective: all
/// ranks pass the same count, type and root. `sendbuff` is used at the root only, and may equal
/// `recvbuff` there. Buffers, streams and blocking are as for ncclAllReduce.
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream);

/// Broadcasts as ncclBroadcast does, from `buff` at the root to `buff` at the other ranks.
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);

/// Sends a block of `count` elements to every rank, and receives one from each. Block r of
/// `sendbuff` goes to rank r, and block r of `recvbuff` comes from rank r. Collective: all ranks
/// pass the same count and type. The buffers must not overlap. Equal buffers are accepted as in
/// NCCL, but then have undefined contents. Streams and blocking are as for ncclAllReduce.
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/// Gathers the `count` elements of every rank's `sendbuff` in the `recvbuff` of rank `root`. There
/// the elements of rank r begin at element `r * count`. Collective: all ranks pass the same count,
/// type and root. `recvbuff` is used at the root only. In place: `sendbuff` of the root is
/// `recvbuff + root * count` elements. Streams and blocking are as for ncclAllReduce.
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/// Scatters the `sendbuff` of rank `root`: the `recvbuff` of rank r receives the `count` elements
/// that begin at element `r * count`. Collective: all ranks pass the same count, type and root.
/// `sendbuff` is used at the root only. Streams and blocking are as for ncclAllReduce. In place:
/// `recvbuff` of the root is `sendbuff + root * count` elements.
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/// Point-to-point: sends the `count` elements of `sendbuff` to rank `peer`, which receives the same
/// number of bytes from this rank. Messages between two ranks arrive in the order of the calls.
/// Blocking is as for ncclAllReduce. Outside a group the call is a group of its own, and its work
/// may wait for the receive. Calls that depend on each other belong in one group. In a group the
/// sends and receives of a communicator run together, after its collectives (see ncclGroupEnd for
/// streams). A rank may send to itself in a group that also receives as many bytes from itself.
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

/// Receives `count` elements from rank `peer` into `recvbuff`; see ncclSend.
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

/// Opens a group. Until ncclGroupEnd, this thread's calls are recorded, and return at once, if they
/// start, split, finalize, destroy or abort communicators, register windows or move data. Groups
/// nest; only the outermost has an effect. Local; returns at once.
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/// Closes a group. The outermost call carries out the recorded calls on all its communicators at
/// once. It returns the error of the first failed call, in the order of the calls. Set-up runs
/// first, then calls that move data, then finalizations, then destructions and aborts. Set-up calls
/// on one communicator run in their order. All windows of one communicator are registered together,
/// at the position of the first registration. All streams that a group names for a communicator are
/// synchronised. Its first kernel waits for them all, and they all wait for its last kernel. If
/// only some streams are captured, the group is refused. The call is as collective and as blocking
/// as the calls inside. All its collectives are checked before the first one starts. If a recorded
/// call was refused, ncclGroupEnd carries out only destructions and aborts. Refused queries,
/// allocations and destructions do not count. Ranks that the group was to start, split or register
/// send the error to their peers, which return it too. Peers of its collectives are not notified:
/// they wait as for a rank that has not called. Error: ncclInvalidUsage without ncclGroupStart, or
/// if a group starts blocking and non-blocking communicators.
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/// Closes a group without effect. The outermost call discards the recorded calls, sets the handles
/// of starts in the group to null, and fills `simInfo`. `estimatedTime` becomes the calls' expected
/// microseconds, by formulas fitted to a few machines, or NCCL_UNDEF_FLOAT if there are no calls.
/// If a call in the group was refused, returns its error, as ncclGroupEnd does. If `simInfo` was
/// not initialised, returns ncclInvalidArgument. Both close the group. An inner call closes its
/// level and leaves `simInfo` unchanged. Local; returns at once.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // NCCL_H_
