/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Every collective of nccl.h with every type and operation. All values are small whole numbers,
   which each type holds exactly, so that results are compared bit by bit. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "every_call.h"

typedef enum {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kAllGather,
  kBroadcast,
  kBcast,
  kAlltoAll,
  kGather,
  kScatter,
  kKinds
} Kind;

static const char* const kNames[kKinds] = {"ncclAllReduce", "ncclReduceScatter", "ncclReduce",
                                           "ncclAllGather", "ncclBroadcast",     "ncclBcast",
                                           "ncclAlltoAll",  "ncclGather",        "ncclScatter"};

/* Describes one call. `op` is kPreMulSum for an operation of ncclRedOpCreatePreMulSum. */
enum { kPreMulSum = ncclNumOps };
typedef struct {
  Kind kind;
  int type;
  int op;
  int root;
  int in_place;
  size_t count;
} Case;

/* Above kManyRanks ranks, each type and operation runs only one of the three reductions. */
enum { kManyRanks = 4, kCount = 37, kLargeCount = 40000, kGuardBytes = 16, kUntouched = 0x55 };

static size_t width_of(int type) {
  static const size_t kWidths[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kWidths[type];
}

size_t collective_bytes(int size) {
  return (size_t)size * kLargeCount * 4 + kGuardBytes;
}

/* Bits of a whole number in a float with that many bits of mantissa and that bias. */
static unsigned float_bits(unsigned value, int mantissa_bits, unsigned bias) {
  unsigned exponent = 0;
  if (value == 0) return 0;
  while (value >> (exponent + 1) != 0) ++exponent;
  const unsigned mantissa = (value << mantissa_bits) >> exponent;
  return ((exponent + bias - 1) << mantissa_bits) + mantissa;
}

/* Stores a whole number as an element of `type`. */
static void store(int type, char* at, unsigned value) {
  const int32_t i32 = (int32_t)value;
  const int64_t i64 = (int64_t)value;
  const float f32 = (float)value;
  const double f64 = (double)value;
  uint16_t f16 = 0;
  switch (type) {
    case ncclInt32:
    case ncclUint32:
      memcpy(at, &i32, sizeof i32);
      break;
    case ncclInt64:
    case ncclUint64:
      memcpy(at, &i64, sizeof i64);
      break;
    case ncclFloat32:
      memcpy(at, &f32, sizeof f32);
      break;
    case ncclFloat64:
      memcpy(at, &f64, sizeof f64);
      break;
    case ncclFloat16:
    case ncclBfloat16:
      f16 = (uint16_t)(type == ncclFloat16 ? float_bits(value, 10, 15) : float_bits(value, 7, 127));
      memcpy(at, &f16, sizeof f16);
      break;
    case ncclFloat8e4m3:
      *at = (char)float_bits(value, 3, 7);
      break;
    case ncclFloat8e5m2:
      *at = (char)float_bits(value, 2, 15);
      break;
    default:
      *at = (char)value;
  }
}

static unsigned scalar_of(int rank) {
  return 1 + (unsigned)rank % 2;
}

/* Element `i` of a rank's input: small enough for the result to be exact in the type. */
static unsigned input_value(const Case* c, int rank, size_t i) {
  const int float8 = c->type == ncclFloat8e4m3 || c->type == ncclFloat8e5m2;
  const size_t at = i + (c->op == ncclAvg ? 0 : (size_t)rank * 5);
  if (c->op == ncclProd) return at % 3 == 0 ? 2 : 1;
  return (unsigned)(at % (float8 ? 2 : 9));
}

static unsigned reduced_value(const Case* c, int size, size_t i) {
  unsigned result = input_value(c, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const unsigned value = input_value(c, rank, i) * (c->op == kPreMulSum ? scalar_of(rank) : 1);
    const int replaces = c->op == ncclMax ? value > result : value < result;
    if (c->op == ncclProd) {
      result *= value;
    } else if (c->op == ncclMax || c->op == ncclMin) {
      if (replaces) result = value;
    } else {
      result += value;
    }
  }
  return c->op == ncclAvg ? result / (unsigned)size : result;
}

/* Returns element `i` of this rank's expected output. */
static unsigned output_value(const Case* c, const Member* m, size_t i) {
  const size_t own = (size_t)m->rank * c->count;
  const int sender = (int)(i / c->count);
  switch (c->kind) {
    case kAllReduce:
    case kReduce:
      return reduced_value(c, m->size, i);
    case kReduceScatter:
      return reduced_value(c, m->size, own + i);
    case kAllGather:
    case kGather:
      return input_value(c, sender, i % c->count);
    case kAlltoAll:
      return input_value(c, sender, own + i % c->count);
    case kScatter:
      return input_value(c, c->root, own + i);
    default:
      return input_value(c, c->root, i);
  }
}

static void make_call(const Member* m, const Case* c, ncclRedOp_t op, char* from, char* to) {
  const ncclDataType_t type = (ncclDataType_t)c->type;
  switch (c->kind) {
    case kAllReduce:
      TRY(AllReduce, (from, to, c->count, type, op, m->comm, NULL));
      break;
    case kReduceScatter:
      TRY(ReduceScatter, (from, to, c->count, type, op, m->comm, NULL));
      break;
    case kReduce:
      TRY(Reduce, (from, to, c->count, type, op, c->root, m->comm, NULL));
      break;
    case kAllGather:
      TRY(AllGather, (from, to, c->count, type, m->comm, NULL));
      break;
    case kBroadcast:
      TRY(Broadcast, (from, to, c->count, type, c->root, m->comm, NULL));
      break;
    case kBcast:
      TRY(Bcast, (to, c->count, type, c->root, m->comm, NULL));
      break;
    case kAlltoAll:
      TRY(AlltoAll, (from, to, c->count, type, m->comm, NULL));
      break;
    case kGather:
      TRY(Gather, (from, to, c->count, type, c->root, m->comm, NULL));
      break;
    default:
      TRY(Scatter, (from, to, c->count, type, c->root, m->comm, NULL));
  }
}

/* Compares `elements` results, and checks that the bytes behind the used output are unchanged.
   Without results, the used output must be unchanged, too. */
static void compare(const Member* m, const Case* c, const char* to, size_t elements, size_t used) {
  const size_t width = width_of(c->type);
  char what[128];
  snprintf(what, sizeof what, "%s, type %d, op %d, root %d, in place %d, count %zu",
           kNames[c->kind], c->type, c->op, c->root, c->in_place, c->count);
  for (size_t i = 0; i < elements; ++i) {
    char expected[8] = "";
    store(c->type, expected, output_value(c, m, i));
    if (memcmp(expected, to + i * width, width) == 0) continue;
    uint64_t bits[2] = {0, 0};
    memcpy(&bits[0], expected, width);
    memcpy(&bits[1], to + i * width, width);
    fprintf(stderr, "rank %d: element %zu of %zu, as bits:\n", this_rank, i, elements);
    EXPECT_INT(what, bits[0], bits[1]);
    return;
  }
  for (size_t i = elements > 0 ? used : 0; i < used + kGuardBytes; ++i) {
    if (m->output[i] == kUntouched) continue;
    EXPECT_INT(what, kUntouched, m->output[i]);
    return;
  }
}

static void run_case(const Member* m, const Case* c, ncclRedOp_t op) {
  const Kind kind = c->kind;
  const int at_root = m->rank == c->root;
  const size_t size = (size_t)m->size;
  const size_t in_blocks =
      kind == kReduceScatter || kind == kAlltoAll || kind == kScatter ? size : 1;
  const size_t out_blocks = kind == kAllGather || kind == kAlltoAll || kind == kGather ? size : 1;
  const int has_input = (kind != kBroadcast && kind != kBcast && kind != kScatter) || at_root;
  const int has_output = (kind != kReduce && kind != kGather) || at_root;
  const size_t width = width_of(c->type);
  const size_t own = (size_t)m->rank * c->count * width;
  const int may_be_in_place = has_input && has_output && kind != kAlltoAll;
  const int in_place = may_be_in_place && (c->in_place || kind == kBcast);
  char* from = m->input;
  char* to = m->output;
  if (in_place && in_blocks > 1) {
    from = m->output;
    to = m->output + own;
  } else if (in_place) {
    from = out_blocks > 1 ? to + own : to;
  }
  const size_t used = (in_place && in_blocks > 1 ? in_blocks : out_blocks) * c->count * width;
  memset(m->output, kUntouched, used + kGuardBytes);
  for (size_t i = 0; has_input && i < in_blocks * c->count; ++i) {
    store(c->type, from + i * width, input_value(c, m->rank, i));
  }
  make_call(m, c, op, from, to);
  compare(m, c, to, has_output ? out_blocks * c->count : 0, used);
}

static void reduce_with_every_op(const Member* m, Case c, int quick) {
  for (c.op = ncclSum; c.op <= kPreMulSum; ++c.op) {
    char scalar[8] = "";
    ncclRedOp_t op = (ncclRedOp_t)c.op;
    const ncclDataType_t type = (ncclDataType_t)c.type;
    const ncclScalarResidence_t residence =
        c.type % 2 == 0 ? ncclScalarHostImmediate : ncclScalarDevice;
    if (quick && c.op != ncclSum && c.op != kPreMulSum) continue;
    store(c.type, scalar, scalar_of(m->rank));
    if (c.op == kPreMulSum) {
      TRY(RedOpCreatePreMulSum, (&op, scalar, type, residence, m->comm));
    }
    for (c.kind = kAllReduce; c.kind <= kReduce; ++c.kind) {
      const int number = c.type + c.op + (int)c.kind;
      if (m->size > kManyRanks && number % 3 != 0) continue;
      c.in_place = number % 2;
      run_case(m, &c, op);
    }
    if (c.op == kPreMulSum) TRY(RedOpDestroy, (op, m->comm));
  }
}

void check_collectives(const Member* m, int quick) {
  for (int type = 0; type < ncclNumTypes; type += quick ? 3 : 1) {
    Case c = {.type = type, .root = type % m->size, .count = kCount};
    reduce_with_every_op(m, c, quick);
    for (c.kind = kAllGather; c.kind < kKinds; ++c.kind) {
      for (int form = quick; form < 2; ++form) {
        c.in_place = (type + form) % 2;
        run_case(m, &c, ncclSum);
      }
    }
  }
  Case large = {.type = ncclFloat32, .root = m->size - 1, .count = kLargeCount};
  for (large.kind = kAllReduce; large.kind < kKinds; ++large.kind) {
    large.in_place = (int)large.kind % 2;
    run_case(m, &large, ncclSum);
  }
}
