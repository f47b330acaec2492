// MPI's collectives on f32, by the protocol of side.py: requests "NAME BYTES CALLS", answers in JSON. Build with
// mpicxx, run by `mpirun -n 2`.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

double seconds_per_call(const char* name, long long bytes, int calls) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int part = static_cast<int>(bytes / static_cast<long long>(sizeof(float)) / ranks);
  std::vector<float> full(static_cast<std::size_t>(part) * static_cast<std::size_t>(ranks), 1.0f);
  std::vector<float> shard(static_cast<std::size_t>(part), 1.0f);
  const bool gather = std::strcmp(name, "all_gather") == 0;
  const auto call = [&] {
    if (gather) MPI_Allgather(shard.data(), part, MPI_FLOAT, full.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
    else MPI_Reduce_scatter_block(full.data(), shard.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  call();
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) call();
  return (MPI_Wtime() - start) / calls;
}

// MPI waits by spinning; between requests other sides need the core.
void broadcast_asleep(char (&line)[256]) {
  MPI_Request request;
  MPI_Ibcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    usleep(500);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, length = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Get_library_version(version, &length);
  version[std::strcspn(version, ",\n")] = 0;  // "Open MPI v4.1.4, package: ..."
  if (rank == 0) std::printf("{\"peer\": \"%s\"}\n", version), std::fflush(stdout);
  char line[256];
  for (;;) {
    std::memset(line, 0, sizeof line);
    if (rank == 0 && !std::fgets(line, sizeof line, stdin)) line[0] = 0;
    broadcast_asleep(line);
    char name[64];
    long long bytes = 0;
    int calls = 0;
    if (std::sscanf(line, "%63s %lld %d", name, &bytes, &calls) != 3) break;
    const double seconds = seconds_per_call(name, bytes, calls);
    if (rank == 0) std::printf("{\"seconds\": [%.9e]}\n", seconds), std::fflush(stdout);
  }
  MPI_Finalize();
}
