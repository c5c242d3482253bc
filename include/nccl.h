// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#ifndef NCCL_H_
#define NCCL_H_

/// The C interface of Oriel's libnccl.so.2. Names, values and layouts are those of NCCL 2.28.9, so
/// that a program built against either header runs on this library. C99 and C++; CUDA's headers are
/// not needed, and may be included before or after this one.
///
/// Terms. A *rank* is one participant of a communicator, numbered from 0. *Local* calls concern the
/// calling rank alone. *Collective* calls must be made by every rank of the communicator, in the
/// same order; those of several communicators of one thread belong inside a group.
///
/// Without a GPU. Ranks then live on CPUs: buffers are host memory, every stream argument must be
/// null, and a collective has finished when its call (or the end of its group) returns.
///
/// Errors. Every call returns ncclSuccess or what went wrong; ncclGetLastError has the words. A
/// set-up call that fails on one rank returns the same error on all of them, and leaves nothing
/// behind. (But where a rank dies or stops before the last message of a set-up, those that had all
/// of its others have ended well; ncclCommGetAsyncError tells them soon after.) Two cannot be told
/// to others, and fail on their own rank at once: an init whose id, rank or number of ranks makes
/// no sense, for which the others wait until ORIEL_TIMEOUT has passed, and a collective with an
/// argument that is wrong on its own, which was not begun and may be made rightly. No call throws,
/// exits or installs a signal handler; what is printed unasked are warnings of the log.
///
/// Which errors. Any call may return ncclInvalidArgument, and ncclInvalidUsage for a bad
/// environment value; calls that allocate or wait also ncclSystemError, and ncclUnhandledCudaError
/// with a GPU; calls on a communicator also ncclRemoteError, ncclSystemError or ncclInvalidUsage
/// for what has made it unusable; ncclInternalError only through a bug.
///
/// Non-blocking communicators (ncclConfig_t::blocking is 0). ncclCommInitRankConfig,
/// ncclCommInitRankScalable, ncclCommSplit, ncclCommFinalize and ncclCommWindowRegister, or the end
/// of a group that holds them, return ncclInProgress and go on in the background, each communicator
/// by itself; ncclCommGetAsyncError tells when they have ended, and how. Until then the
/// communicator's other calls return ncclInvalidUsage, but for queries, ncclCommDestroy,
/// ncclCommAbort and ncclCommRevoke. Collectives are as blocking as ever (see "Without a GPU"); a
/// registration or finalization in the same group as a collective of the communicator has ended
/// with the group.
///
/// Thread safety. Distinct communicators may be used by distinct threads at once; one communicator
/// by one thread at a time, except for ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError,
/// which any thread may call. Calls that take no communicator may be made by any thread.
///
/// Each function ncclX has a twin pncclX that does the same, so that a profiler may replace ncclX
/// and still reach the original.

#include <limits.h>
#include <stddef.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""

/// One number for a version, such as 22809 for 2.28.9. Up to 2.8 the factors were smaller.
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE 22809

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifndef __DRIVER_TYPES_H__  // the guard of the CUDA header that declares the same type
typedef struct CUstream_st* cudaStream_t;
#endif

/// A communicator. The value is a ticket, not an address: a destroyed one is recognised and
/// refused.
typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL

/// A registered buffer: the address of its descriptor in the memory that kernels read.
typedef struct ncclWindow_vidmem* ncclWindow_t;

#define NCCL_UNIQUE_ID_BYTES 128
/// What a new communicator's ranks have in common: where they meet, and a secret that proves that
/// they belong there. Copy all 128 bytes, over a channel that you trust.
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,  ///< CUDA refused a call
  ncclSystemError = 2,         ///< the operating system refused a call, or a deadline passed
  ncclInternalError = 3,       ///< an invariant of the library is broken: please report it
  ncclInvalidArgument = 4,     ///< an argument is wrong on its own
  ncclInvalidUsage = 5,        ///< the call does not fit the state, or ranks disagree
  ncclRemoteError = 6,         ///< another rank failed, died or aborted
  ncclInProgress = 7,          ///< not an error: a non-blocking communicator is still at work
  ncclNumResults = 8
} ncclResult_t;

/// "Not set" in ncclConfig_t.
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL

/// "Not known" in ncclSimInfo_t.
#define NCCL_UNDEF_FLOAT -1.0f

/// Color of a rank that takes part in ncclCommSplit but not in a new communicator.
#define NCCL_SPLIT_NOCOLOR -1

/// Flags of ncclCommWindowRegister.
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01  ///< every rank passes the window at the same offset
/// In bytes, of a window's first address and of its offset in the allocation.
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/// Values of ncclConfig_t::CTAPolicy.
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01  ///< fewer thread blocks where that costs little time
#define NCCL_CTA_POLICY_ZERO 0x02        ///< copy engines instead of thread blocks where possible

/// Flags of ncclCommShrink.
#define NCCL_SHRINK_DEFAULT 0x00  ///< wait for the parent's work
#define NCCL_SHRINK_ABORT 0x01    ///< end the parent's work first

/// Flags of ncclCommRevoke: none yet.
#define NCCL_REVOKE_DEFAULT 0x00

/// How a communicator shall behave. Start from NCCL_CONFIG_INITIALIZER and set what you need.
///
/// `blocking`, `minCTAs`, `maxCTAs` and `commName` are honoured, and of later versions
/// `graphUsageMode` and `graphStreamOrdering` (see ncclAllReduce). All other fields only tune, and
/// are hints: a log line at ORIEL_LOG=info names each one that is set and ignored. A number of CTAs
/// that is out of range is moved into it, with such a line. Refused are a `blocking` that is
/// neither 0 nor 1, and a structure that was not initialised.
///
/// Structures of NCCL 2.14 to 2.32.3 are accepted, each read as far as its version goes. Of a
/// longer one the rest is ignored, and one warning names both sizes.
typedef struct ncclConfig_v22800 {
  size_t size;  ///< set by the initializer, as are the next two; not to be changed
  unsigned int magic;
  unsigned int version;     ///< of the header that the program was built with
  int blocking;             ///< 1: calls return when done (the default); 0: they may be in progress
  int cgaClusterSize;       ///< thread blocks in a cluster
  int minCTAs;              ///< least number of thread blocks for a collective, 1 to 1024
  int maxCTAs;              ///< and the most; an all-reduce has one more, which moves no data
  const char* netName;      ///< which network to use; may be freed after the call
  int splitShare;           ///< whether a communicator split from this one shares its resources
  int trafficClass;         ///< of the network's packets
  const char* commName;     ///< for messages; may be freed after the call
  int collnetEnable;        ///< 1: let network switches reduce
  int CTAPolicy;            ///< one of NCCL_CTA_POLICY_*
  int shrinkShare;          ///< as splitShare, for a communicator shrunk from this one
  int nvlsCTAs;             ///< thread blocks of collectives that use NVLink multicast
  int nChannelsPerNetPeer;  ///< number of channels to each rank that is reached over a network
  int nvlinkCentricSched;   ///< 1: order the steps for NVLink rather than for the network
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                         \
  {                                                                                     \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                                   \
  }

/// What ncclGroupSimulateEnd finds out. Start from NCCL_SIM_INFO_INITIALIZER.
typedef struct ncclSimInfo_v22200 {
  size_t size;  ///< set by the initializer, as are the next two; not to be changed
  unsigned int magic;
  unsigned int version;
  float estimatedTime;  ///< of the group's collectives; NCCL_UNDEF_FLOAT: not known
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                        \
  {                                                                                      \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_UNDEF_FLOAT,                                                                \
  }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
/// How elements are combined. Values from ncclNumOps on are made by ncclRedOpCreate*.
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,  ///< NaN if any rank has NaN, as for ncclMin
  ncclMin = 3,
  ncclAvg = 4,  ///< sum / ranks; of integers the wrapped sum, rounded toward zero
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

/// Element types. A count is always in elements. The 8-bit floats saturate: a result that is too
/// large, an infinity among them, becomes the largest finite value.
typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/// Where a scalar argument lives and when it is read.
typedef enum {
  ncclScalarDevice = 0,        ///< memory that the device can read, at each collective that uses it
  ncclScalarHostImmediate = 1  ///< host memory, before the call returns
} ncclScalarResidence_t;

/// Stores NCCL_VERSION_CODE of this library's interface, 22809. Local, returns at once.
ncclResult_t ncclGetVersion(int* version);
ncclResult_t pncclGetVersion(int* version);

/// Makes the id of a communicator to come, and opens the meeting point on this host. One process
/// calls it and hands the bytes to all ranks; an id serves one communicator, or one failed attempt
/// to start one, and expires if no rank has come 10 minutes after it was made: init with a used or
/// expired one is an error. The process must live and run until all ranks have joined. Local, does
/// not wait for other ranks.
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);

/// Joins the communicator `commId` as `rank` of `nranks` and stores its handle. The thread's
/// current device is this rank's; without a GPU there is none to set. Collective; returns when all
/// ranks have joined, or with the same error on all of them by the deadline of set-up
/// (ORIEL_TIMEOUT). Ranks may be processes, threads, or several calls of one thread inside a group;
/// at most 8 GPU ranks, or 64 CPU ranks, on one node.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

/// As ncclCommInitRank, with settings of this communicator; a null `config` sets nothing.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config);

/// Joins as ncclCommInitRankConfig does, for jobs that made several ids: all ranks pass the same
/// `nId` ids, at least 1 and at most `nranks`. The ranks meet at the first id. The others are not
/// used, and their meeting points stay open until they expire; one id is enough.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config);

/// Makes all `ndev` ranks of a communicator in this process and stores their handles in comm[0] to
/// comm[ndev - 1]; rank i uses device devlist[i], or device i if `devlist` is null. Without a GPU
/// `devlist` must be null. Local: no other process takes part. Blocking, until all ranks have
/// joined or by the deadline of set-up; after a failure all handles are null. Inside a group the
/// group's end does the work.
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

/// Completes what was enqueued on this communicator; only queries, ncclCommDestroy and
/// ncclCommAbort may follow. Local: waits for no call of another rank, only for this rank's own
/// work, so the ranks of several communicators may end them in any order. Among nodes it waits for
/// at most 5 seconds until other ranks have taken what they were sent; the rest is under way, and
/// ncclCommDestroy waits for it again. Blocking; a non-blocking communicator is in progress until
/// then. A later call of another rank that needs this one is ncclRemoteError there, and may become
/// this rank's asynchronous error. A group that ncclGroupEnd refuses finalizes nothing; one of
/// which a call fails goes on with its finalizations.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/// Frees this rank's part of a communicator, with the windows still registered in it. A later call
/// with the handle is an error. Null is allowed. Local: other ranks need not call it. Blocking: it
/// first waits for what was enqueued here, and so for the ranks that this work waits for; once the
/// communicator is unusable, for at most 5 seconds. Memory that a kernel may still use is freed
/// when the last kernel has ended. A graph that holds a call may be launched until it is destroyed,
/// with its executable copies: the memory lives as long. Destruction waits 5 seconds more where a
/// rank of another host that has gone may still read memory of this one. Ranks make the same
/// collective calls before they destroy: one that waits in a call for a rank that has left gets
/// ncclRemoteError. What a non-blocking communicator has in progress is not waited for: it ends in
/// the background, and its windows are not stored any more. Inside a group the communicator ends
/// behind all other requests, also when the group is refused; a later call on it in the group is
/// ncclInvalidUsage.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/// Ends what is running on this communicator, without waiting for other ranks, and frees it. Output
/// of collectives that were under way is undefined. Local; any thread may call it. The other ranks
/// get ncclRemoteError, this one ncclInvalidUsage. Of a blocking communicator whose start a group
/// has not ended, it ends the set-up of the whole group. Returns within 250 ms: memory that a
/// kernel or a graph may still use is freed when that has ended. A graph that holds a call ends at
/// once when it is launched. Inside a group it is noted as ncclCommDestroy is.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/// Ends what is running on this communicator, as ncclCommAbort does, but keeps the handle: queries,
/// ncclCommDestroy and ncclCommAbort still work, and every other call fails and says why.
/// `revokeFlags` is NCCL_REVOKE_DEFAULT. Local; any thread may call it. Returns when no kernel of
/// the communicator runs any more, or with ncclSystemError after 5 seconds. From then on
/// ncclCommGetAsyncError stores ncclSuccess here. The other ranks get ncclRemoteError until they
/// revoke too. A start or registration in progress ends with an error. A second revocation is an
/// error, as is one after ncclCommFinalize; null is allowed.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/// Makes a communicator of the ranks that pass the same `color`, ordered by `key` and then by rank
/// in this communicator, and stores its handle. `color` is 0 or more, or NCCL_SPLIT_NOCOLOR, with
/// which a rank gets a null handle; `key` is any number. A null `config` takes over what this
/// communicator was given, but not its name. The new communicator has this one's device, and lives
/// on when this one is destroyed or aborted. Collective over this communicator; returns as
/// ncclCommInitRank does. An error of one rank's arguments is the same on all ranks; an error of a
/// later step is the same on the ranks of a color. Several splits in a group are made in the order
/// of the calls. With a non-blocking communicator the handle is stored at once, and both
/// communicators are in progress.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config);

/// Makes a communicator without the ranks of a list. Not supported by this version of Oriel:
/// returns ncclInvalidUsage on every rank, at once, and stores a null handle. Start a communicator
/// of the remaining ranks with ncclGetUniqueId and ncclCommInitRank instead.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);

/// Stores ncclSuccess, ncclInProgress, or the error that has made this communicator unusable since,
/// such as the death of a rank; of a non-blocking one also the error of its last call, until the
/// next. Local, returns at once; any thread may call it.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

/// Stores the number of ranks. Local, returns at once, as the next two.
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);

/// Stores the CUDA device of this rank; -1 without a GPU.
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);

/// Stores this rank's number.
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);

/// A constant name of `result`, never null.
const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);

/// The last error in words: what was attempted, the first cause, the rank it came from, and what to
/// do. The error that has made `comm` unusable if there is one, else the last error that a call of
/// this thread returned or ncclCommGetAsyncError stored; `comm` may be null. Never null, empty if
/// there was none; valid until this thread's next failing call, or next call of this function or
/// of ncclCommGetAsyncError.
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);

/// Does nothing, as ORIEL_LOG and ORIEL_LOG_FILE are read once for each process. NCCL keeps it for
/// old programs only. Local.
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);

/// Allocates at least `size` bytes that can be registered as a window: device memory of the current
/// device, or shared host memory without a GPU. Aligned for windows. Local, may synchronise the
/// device. A size of 0 is refused, as is host memory beyond what the machine or a control group has
/// left. A process that is forked later shares the memory with this one and may use and free it,
/// but not register it: allocate after the fork.
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);

/// Frees what ncclMemAlloc gave; any other address is refused. Null is allowed. Local. Refused
/// while a window is registered on it: deregister that first.
ncclResult_t ncclMemFree(void* ptr);
ncclResult_t pncclMemFree(void* ptr);

/// Notes that collectives of `comm` will use `size` bytes at `buff`, of any memory, and stores a
/// handle for ncclCommDeregister. Results do not depend on it, nor does speed today. Local; returns
/// at once, also inside a group. What is still registered ends with the communicator.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);

/// Ends a registration of ncclCommRegister with `comm`; any other handle is refused, null is
/// allowed. Also after ncclCommFinalize. Local.
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);

/// Makes `size` bytes at `buff` a window, which the other ranks can reach. Collective; ranks pass
/// the same size and flags, each its own address. The address is a multiple of
/// NCCL_WIN_REQUIRED_ALIGNMENT, in memory of ncclMemAlloc or in any CUDA virtual-memory allocation
/// that was created exportable; cudaMalloc's and malloc's memory is refused. Several windows may
/// share an allocation, nest or coincide. Inside a group, `win` is stored when the group ends; for
/// a non-blocking communicator, before ncclCommGetAsyncError stores ncclSuccess.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags);

/// Ends a registration. Local: ranks may deregister in any order, once no collective that uses the
/// window is under way. The memory stays the caller's.
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/// What kernels communicate through, and what a program asks of it: types of NVIDIA's device
/// headers, which declare the next two functions as well.
struct ncclDevComm;
struct ncclDevCommRequirements;

/// Makes a device communicator. Not supported by this version of Oriel: returns ncclInvalidUsage on
/// every rank, at once, and stores nothing. Kernels communicate through Oriel's own device headers
/// instead (oriel::Communicator::device_comm).
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements* reqs,
                               struct ncclDevComm* outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements* reqs,
                                struct ncclDevComm* outDevComm);

/// Destroys what ncclDevCommCreate made, which is nothing: returns ncclInvalidUsage. Local.
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm* devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm* devComm);

/// Makes an operation that multiplies this rank's elements by *scalar, of type `datatype`, rounds
/// the products to that type and then sums; ranks may have different scalars. For collectives of
/// `comm` on `datatype` only. Local.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/// Destroys an operation made by ncclRedOpCreate*; collectives already called may still run. Local.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/// Combines `count` elements of every rank's `sendbuff`, element by element, and stores the result,
/// the same bits on every rank, in every `recvbuff`. Collective; all ranks pass the same count,
/// type and operation. The buffers are aligned to the element, and either equal or disjoint; each
/// may be registered or not. With a GPU the work is enqueued on `stream` (and may be captured into
/// a graph) and the call returns; `recvbuff` holds the result once the stream has got there.
/// Calls of one communicator run one after the other, in the order of the calls, whatever their
/// streams. So do launches of graphs that hold calls of the communicator, also beside calls outside
/// graphs, in the order of the launches; all ranks call and launch in the same order. With
/// NCCL_GRAPH_MIXING_SUPPORT=0, or graphUsageMode 0 or 1, launches of graphs are for the caller to
/// order, on one stream or with events. With graphStreamOrdering 0 besides, so are captured calls
/// on different streams of one capture.
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream);

/// Collects `sendcount` elements of every rank in every `recvbuff`, in rank order: those of rank r
/// begin at element r * sendcount. Collective; all ranks pass the same count and type. Buffers as
/// for ncclAllReduce; in place means that `sendbuff` is where the rank's own elements belong,
/// recvbuff + rank * sendcount elements.
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/// Combines every rank's `sendbuff`, of `recvcount` elements for each rank, element by element, and
/// leaves rank r with the elements from r * recvcount on. Collective; all ranks pass the same
/// count, type and operation. Buffers as for ncclAllReduce; in place means that `recvbuff` is where
/// the rank's own part of the input lies, sendbuff + rank * recvcount elements.
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

/// Combines `count` elements of every rank's `sendbuff`, element by element, and stores the result
/// in the `recvbuff` of rank `root`. Collective; all ranks pass the same count, type, operation and
/// root. `recvbuff` matters at the root only. Buffers as for ncclAllReduce; in place means that
/// `sendbuff` and `recvbuff` of the root are equal.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream);

/// Copies `count` elements of the `sendbuff` of rank `root` into every `recvbuff`. Collective; all
/// ranks pass the same count, type and root. `sendbuff` matters at the root only, and may equal
/// `recvbuff` there.
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream);

/// Broadcasts in place: `buff` is source at the root and destination elsewhere.
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);

/// Sends `count` elements to every rank, and receives as many from each: block r of `sendbuff` goes
/// to rank r, block r of `recvbuff` comes from rank r. Collective; all ranks pass the same count
/// and type. The buffers do not overlap. Equal ones are accepted, as by NCCL; what they hold
/// afterwards is undefined.
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/// Collects `count` elements of every rank in the `recvbuff` of rank `root`, in rank order.
/// Collective; all ranks pass the same count, type and root. `recvbuff` matters at the root only;
/// in place means that `sendbuff` of the root is recvbuff + root * count elements.
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/// Gives rank r the elements from r * count on of the `sendbuff` of rank `root`, `count` of them.
/// Collective; all ranks pass the same count, type and root. `sendbuff` matters at the root only;
/// in place means that `recvbuff` of the root is sendbuff + root * count elements.
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/// Sends `count` elements to rank `peer`, which calls ncclRecv with this rank as its peer and the
/// same number of bytes. Messages between two ranks arrive in the order of the calls. Outside a
/// group the call is a group of its own: it may wait for the receive, so calls that depend on each
/// other belong in one group. In a group the sends and receives of a communicator run together,
/// behind its collectives (see ncclGroupEnd for streams). A rank may send to itself inside a
/// group that receives as much.
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

/// Receives `count` elements from rank `peer`, as described for ncclSend.
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

/// Opens a group: until ncclGroupEnd, this thread's calls that start, split, finalize, destroy or
/// abort communicators, register windows or communicate are only noted. Groups nest; the outermost
/// counts. Local.
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/// Closes a group; the outermost one carries out what was noted, on all its communicators at once,
/// and returns the error of the first failed call in the order of the calls. Set-up comes first,
/// then calls that move data, finalizations, and destructions and aborts. Set-up calls on one
/// communicator are made in the order of the calls, but its windows together, at the place of the
/// first. All streams that a group names for a communicator wait for each other: its first kernel
/// waits for all of them, and all of them wait for its last. Streams of which only some are
/// captured are refused. As collective and as blocking as the calls inside.
/// If a call inside that belongs to the group was refused, nothing but ends of handles is carried
/// out (a failed query, allocation or destruction inside does not count): ranks that the group was
/// to start or register tell their other ranks, which get the same error; other ranks of
/// its collectives are not told and wait for this one, as they do for a rank that has not called.
/// All collectives of a group are checked before the first begins.
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/// Closes a group without effect: what the outermost one has noted is forgotten, handles of starts
/// in it become null, and `simInfo` is filled. Oriel has no model of time, so `estimatedTime`
/// becomes NCCL_UNDEF_FLOAT. Returns the error of a call inside that was refused, as ncclGroupEnd
/// does, or ncclInvalidArgument for a `simInfo` that was not initialised; the group is closed in
/// both cases. Local. An inner one only counts, and leaves `simInfo` as it is.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // NCCL_H_
