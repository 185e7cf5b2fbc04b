/* launch.c: was this process started as one of several?
 *
 * In: the environment that launchers leave. Open MPI's mpirun sets OMPI_COMM_WORLD_SIZE and _RANK, MPICH's (Hydra) and
 * srun --mpi=pmi2 PMI_SIZE and PMI_RANK, srun SLURM_STEP_NUM_TASKS and SLURM_PROCID, any PMIx launcher PMIX_RANK, which
 * says no size; torchrun RANK, WORLD_SIZE and where to meet. Each says which of its machine's processes this is. */
#include "comm.h"

#include <stdlib.h>

static int
launch_number(const char *name)
{
	const char *text = getenv(name);
	char *end;
	long n = text ? strtol(text, &end, 10) : -1;

	return text && *text && !*end && n >= 0 && n < 1 << 24 ? (int)n : -1;
}

RtLaunch
rt_launch(void)
{
	static const struct {
		const char *name, *size, *rank, *local;
	} known[] = {
	        {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
	        {"MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
	        {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"},
	        {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK"},
	};
	bool meet = getenv("MASTER_ADDR") && launch_number("MASTER_PORT") > 0;

	for (int i = 0; i < RT_COUNT(known); i++) {
		int size = launch_number(known[i].size), rank = launch_number(known[i].rank);

		/* names that anybody may use: torchrun's four stand together */
		if (size > 0 && rank >= 0 && rank < size && (i + 1 < RT_COUNT(known) || meet))
			return (RtLaunch){known[i].name, size, rank, launch_number(known[i].local)};
	}
	if (launch_number("PMIX_RANK") >= 0)
		return (RtLaunch){"PMIx", 0, launch_number("PMIX_RANK"), -1};
	return (RtLaunch){NULL, 1, 0, -1};
}
