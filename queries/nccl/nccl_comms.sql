-- The members of each NCCL communicator: where they run, on which device, how init went.
--
-- A process is no rank: one may drive several. group_rank counts within the communicator; the
-- world rank is stated only where the log proves it, or where a trace shows the same process.
--
-- reads: nccl_comm, rank
-- grain: attempt, comm, source_id, place
-- asked: report
-- column: comm VARCHAR : Communicator: commId, or size and order where NCCL states none.
-- column: group_rank INTEGER : Rank within the communicator.
-- column: world_rank INTEGER : Global rank; null unless proved.
-- column: node VARCHAR : Host as NCCL names it.
-- column: pid BIGINT : Process.
-- column: group_size INTEGER : Members.
-- column: nodes_count INTEGER : Nodes that NCCL itself counts; null before 2.20.
-- column: device INTEGER : CUDA ordinal.
-- column: pci VARCHAR : PCI address of the GPU.
-- column: channels_count INTEGER : Collective channels.
-- column: nccl_version VARCHAR : Version that this process states; null where another one did.
-- column: init_dur_ns BIGINT : Time in init.
-- column: state VARCHAR : complete, incomplete, aborted, or null where the log does not say.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : First line about it.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
SELECT
    comm,
    group_rank,
    world_rank,
    node,
    pid,
    group_size,
    nodes_count,
    device,
    pci,
    channels_count,
    nccl_version,
    init_dur_ns,
    state,
    source_id,
    place,
    attempt
FROM nccl_ranked()
ORDER BY attempt, comm, group_rank, source_id, place;
