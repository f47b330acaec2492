#include "tests/comm/conformance/engines.h"

#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/hosts/store_group.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/exec/context.h"
#include "tests/comm/backends.h"
#include "tests/support/bare_group.h"

namespace sherd::testing {

namespace {

Engine engine_of(const Backend& backend) {
  const auto run = [backend](int count, const EngineBody& body) {
    return backend.run(count, [&body](HostGroup& group) {
      const RankScope scope;
      if (const SharedHeap heap = group.shared_heap(); heap.bytes > 0)
        RankContext::current().use_shared_heap(heap.memory, heap.bytes);
      body(group, Device::cpu());
    });
  };
  Engine engine{.name = backend.name, .run = run};
  if (backend.max_ranks == 7) engine.worlds.push_back(7);
  return engine;
}

}  // namespace

std::vector<Engine> host_engines() {
  std::vector<Engine> engines;
  for (const Backend& backend : all_backends()) engines.push_back(engine_of(backend));
  engines.push_back(composed_engine(SumsBy::ordered));
  engines.push_back(store_engine());
  return engines;
}

Engine store_engine() {
  const Engine threads = engine_of(all_backends().front());
  return {.name = "store", .worlds = {1, 2, 3, 4}, .run = [threads](int count, const EngineBody& body) {
            const TcpStoreServer server({});
            const StoreGroupOptions options{
                .connect = [&server] { return std::make_unique<TcpStore>(TcpStoreOptions{.port = server.port()}); }};
            return threads.run(count, [&](ProcessGroup& host, Device device) {
              const auto group = make_store_group(host.rank(), host.size(), options);
              try {
                body(*group, device);
              } catch (const std::exception& error) {
                group->abort(error.what());
                throw;
              }
            });
          }};
}

Engine composed_engine(SumsBy sums) {
  const Engine threads = engine_of(all_backends().front());
  return {.name = "composed", .worlds = threads.worlds, .run = [threads, sums](int count, const EngineBody& body) {
            return threads.run(count, [&](ProcessGroup& group, Device device) {
              body(*make_composed_group(make_bare_group(group.shared_from_this()), sums), device);
            });
          }};
}

}  // namespace sherd::testing
