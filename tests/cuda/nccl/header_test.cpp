// Our declarations of NCCL against the installed nccl.h, when this is compiled: every type, value and signature.
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>
#include <nccl.h>

#include "runtime/cuda/nccl/nccl_api.h"

namespace sherd::cuda::nccl {
namespace {

// NVIDIA's type as ours.
template <class T>
struct Ours : std::type_identity<T> {};
template <class T>
struct Ours<T*> : std::type_identity<typename Ours<T>::type*> {};
template <>
struct Ours<ncclComm> : std::type_identity<Communicator> {};
template <>
struct Ours<ncclUniqueId> : std::type_identity<UniqueId> {};
template <>
struct Ours<ncclResult_t> : std::type_identity<Result> {};
template <>
struct Ours<ncclDataType_t> : std::type_identity<DataType> {};
template <>
struct Ours<ncclRedOp_t> : std::type_identity<RedOp> {};
template <>
struct Ours<ncclScalarResidence_t> : std::type_identity<ScalarResidence> {};
template <>
struct Ours<ncclConfig_t> : std::type_identity<Config> {};
template <class R, class... Args>
struct Ours<R(Args...)> : std::type_identity<typename Ours<R>::type(typename Ours<Args>::type...)> {};

template <auto member, class Theirs>
constexpr bool same = std::is_same_v<decltype(member), typename Ours<Theirs>::type * NcclApi::*>;
template <class Mine, class Theirs>
constexpr bool equal(Mine mine, Theirs theirs) {
  return sizeof(Mine) == sizeof(Theirs) && static_cast<unsigned>(mine) == static_cast<unsigned>(theirs);
}

using Agrees = std::pair<const char*, bool>;

constexpr Agrees kFunctions[] = {
    Agrees("ncclGetVersion", same<&NcclApi::get_version, decltype(ncclGetVersion)>),
    Agrees("ncclGetUniqueId", same<&NcclApi::get_unique_id, decltype(ncclGetUniqueId)>),
    Agrees("ncclGetErrorString", same<&NcclApi::error_string, decltype(ncclGetErrorString)>),
    Agrees("ncclGetLastError", same<&NcclApi::last_error, decltype(ncclGetLastError)>),
    Agrees("ncclCommInitRankConfig", same<&NcclApi::init_rank, decltype(ncclCommInitRankConfig)>),
    Agrees("ncclCommSplit", same<&NcclApi::split, decltype(ncclCommSplit)>),
    Agrees("ncclCommFinalize", same<&NcclApi::finalize, decltype(ncclCommFinalize)>),
    Agrees("ncclCommDestroy", same<&NcclApi::destroy, decltype(ncclCommDestroy)>),
    Agrees("ncclCommAbort", same<&NcclApi::abort, decltype(ncclCommAbort)>),
    Agrees("ncclCommGetAsyncError", same<&NcclApi::async_error, decltype(ncclCommGetAsyncError)>),
    Agrees("ncclGroupStart", same<&NcclApi::group_start, decltype(ncclGroupStart)>),
    Agrees("ncclGroupEnd", same<&NcclApi::group_end, decltype(ncclGroupEnd)>),
    Agrees("ncclAllReduce", same<&NcclApi::all_reduce, decltype(ncclAllReduce)>),
    Agrees("ncclAllGather", same<&NcclApi::all_gather, decltype(ncclAllGather)>),
    Agrees("ncclReduceScatter", same<&NcclApi::reduce_scatter, decltype(ncclReduceScatter)>),
    Agrees("ncclBroadcast", same<&NcclApi::broadcast, decltype(ncclBroadcast)>),
    Agrees("ncclReduce", same<&NcclApi::reduce, decltype(ncclReduce)>),
    Agrees("ncclSend", same<&NcclApi::send, decltype(ncclSend)>),
    Agrees("ncclRecv", same<&NcclApi::recv, decltype(ncclRecv)>),
    Agrees("ncclRedOpCreatePreMulSum", same<&NcclApi::create_pre_mul_sum, decltype(ncclRedOpCreatePreMulSum)>),
    Agrees("ncclRedOpDestroy", same<&NcclApi::destroy_op, decltype(ncclRedOpDestroy)>),
#if NCCL_VERSION_CODE >= 22807
    Agrees("ncclCommRevoke", same<&NcclApi::revoke, decltype(ncclCommRevoke)>),
#endif
    Agrees("ncclMemAlloc", same<&NcclApi::allocate, decltype(ncclMemAlloc)>),
    Agrees("ncclMemFree", same<&NcclApi::free, decltype(ncclMemFree)>),
    Agrees("ncclCommInitRankScalable", same<&NcclApi::init_rank_scalable, decltype(ncclCommInitRankScalable)>),
};

constexpr Agrees kValues[] = {
    Agrees("ncclSuccess", equal(Result::success, ncclSuccess)),
    Agrees("ncclUnhandledCudaError", equal(Result::unhandled_cuda_error, ncclUnhandledCudaError)),
    Agrees("ncclSystemError", equal(Result::system_error, ncclSystemError)),
    Agrees("ncclInternalError", equal(Result::internal_error, ncclInternalError)),
    Agrees("ncclInvalidArgument", equal(Result::invalid_argument, ncclInvalidArgument)),
    Agrees("ncclInvalidUsage", equal(Result::invalid_usage, ncclInvalidUsage)),
    Agrees("ncclRemoteError", equal(Result::remote_error, ncclRemoteError)),
    Agrees("ncclInProgress", equal(Result::in_progress, ncclInProgress)),
    Agrees("ncclInt8", equal(DataType::int8, ncclInt8)),
    Agrees("ncclUint8", equal(DataType::uint8, ncclUint8)),
    Agrees("ncclInt32", equal(DataType::int32, ncclInt32)),
    Agrees("ncclUint32", equal(DataType::uint32, ncclUint32)),
    Agrees("ncclInt64", equal(DataType::int64, ncclInt64)),
    Agrees("ncclUint64", equal(DataType::uint64, ncclUint64)),
    Agrees("ncclFloat16", equal(DataType::float16, ncclFloat16)),
    Agrees("ncclFloat32", equal(DataType::float32, ncclFloat32)),
    Agrees("ncclFloat64", equal(DataType::float64, ncclFloat64)),
    Agrees("ncclBfloat16", equal(DataType::bfloat16, ncclBfloat16)),
#if NCCL_VERSION_CODE >= 22400
    Agrees("ncclFloat8e4m3", equal(DataType::float8e4m3, ncclFloat8e4m3)),
    Agrees("ncclFloat8e5m2", equal(DataType::float8e5m2, ncclFloat8e5m2)),
#endif
    Agrees("ncclSum", equal(RedOp::sum, ncclSum)),
    Agrees("ncclProd", equal(RedOp::prod, ncclProd)),
    Agrees("ncclMax", equal(RedOp::max, ncclMax)),
    Agrees("ncclMin", equal(RedOp::min, ncclMin)),
    Agrees("ncclAvg", equal(RedOp::avg, ncclAvg)),
    Agrees("ncclScalarDevice", equal(ScalarResidence::device, ncclScalarDevice)),
    Agrees("ncclScalarHostImmediate", equal(ScalarResidence::host_immediate, ncclScalarHostImmediate)),
    Agrees("NCCL_CONFIG_UNDEF_INT", kUndefined == NCCL_CONFIG_UNDEF_INT),
    Agrees("NCCL_SPLIT_NOCOLOR", kNoColor == NCCL_SPLIT_NOCOLOR),
};

constexpr Agrees kMembers[] = {
    Agrees("size", offsetof(Config, size) == offsetof(ncclConfig_t, size)),
    Agrees("magic", offsetof(Config, magic) == offsetof(ncclConfig_t, magic)),
    Agrees("version", offsetof(Config, version) == offsetof(ncclConfig_t, version)),
    Agrees("blocking", offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking)),
    Agrees("cgaClusterSize", offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize)),
    Agrees("minCTAs", offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs)),
    Agrees("maxCTAs", offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs)),
    Agrees("netName", offsetof(Config, net_name) == offsetof(ncclConfig_t, netName)),
    Agrees("splitShare", offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare)),
#if NCCL_VERSION_CODE >= 22700
    Agrees("trafficClass", offsetof(Config, traffic_class) == offsetof(ncclConfig_t, trafficClass)),
    Agrees("commName", offsetof(Config, comm_name) == offsetof(ncclConfig_t, commName)),
    Agrees("collnetEnable", offsetof(Config, collnet_enable) == offsetof(ncclConfig_t, collnetEnable)),
    Agrees("CTAPolicy", offsetof(Config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy)),
    Agrees("shrinkShare", offsetof(Config, shrink_share) == offsetof(ncclConfig_t, shrinkShare)),
    Agrees("nvlsCTAs", offsetof(Config, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs)),
#endif
#if NCCL_VERSION_CODE >= 22800
    Agrees("nChannelsPerNetPeer",
           offsetof(Config, num_channels_per_net_peer) == offsetof(ncclConfig_t, nChannelsPerNetPeer)),
    Agrees("nvlinkCentricSched", offsetof(Config, nvlink_centric_sched) == offsetof(ncclConfig_t, nvlinkCentricSched)),
#endif
};

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));

TEST(NcclHeader, EveryDeclarationIsTheInstalledOne) {
  for (const std::span<const Agrees> table :
       {std::span<const Agrees>(kFunctions), std::span<const Agrees>(kValues), std::span<const Agrees>(kMembers)})
    for (const auto& [name, agrees] : table) EXPECT_TRUE(agrees) << name;
}

TEST(NcclHeader, ConfigHasTheSizeMagicAndDefaultsOfItsInitializer) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours = config_for(NCCL_VERSION_CODE);
  if (NCCL_VERSION_CODE <= kKnownVersion) EXPECT_EQ(ours.size, theirs.size);
  else EXPECT_LE(ours.size, theirs.size);
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, std::min(theirs.version, static_cast<unsigned>(kKnownVersion)));
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
}

}  // namespace
}  // namespace sherd::cuda::nccl
