-- How fast each rank multiplies matrices: floating-point operations by shape, over kernel time.
--
-- Says whether slow computing is a matter of the kernels: hold it against the peak of the GPU.
-- A multiplication of M x K by K x N is 2 M N K operations; shapes are the operators' recorded
-- inputs, times those of the kernels that they launched (a reduction of partial sums included).
-- Attention, convolutions and kernels of torch.compile or libraries of their own are left out, and
-- so is what recorded no shapes (record_shapes=True records them).
--
-- reads: host_op, gpu_op, rank
-- needs: host_op, gpu_op
-- grain: attempt, rank, operator, dtype
-- asked: report
-- column: rank INTEGER : Global rank.
-- column: operator VARCHAR : aten::mm, aten::addmm, aten::bmm, aten::baddbmm or aten::_scaled_mm.
-- column: dtype VARCHAR : Element type of the first matrix.
-- column: calls_count BIGINT : Multiplications.
-- column: total_flops DOUBLE : Their operations.
-- column: total_elements DOUBLE : Elements of both matrices and of the product, each once: the
--     least that must be read and written.
-- column: kernel_ns BIGINT : Time of their kernels.
-- column: flops_per_s DOUBLE : Operations a second of kernel time.
-- column: kernel_ratio DOUBLE : Share of the rank's computing kernel time; a sum over streams.
-- column: gpu_model VARCHAR : GPU model; null where unknown.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    products AS (
        SELECT
            source_id,
            external_id,
            name AS operator,
            TRY_CAST(input_dims AS BIGINT[][]) AS dims,
            regexp_extract(
                string_split(input_types, ',')[
                    if(name IN ('aten::addmm', 'aten::baddbmm'), 2, 1)
                ],
                '([A-Za-z0-9_]+)"',
                1
            ) AS dtype
        FROM host_op
        WHERE
            name IN ('aten::mm', 'aten::addmm', 'aten::bmm', 'aten::baddbmm', 'aten::_scaled_mm')
            AND input_dims IS NOT NULL
            AND external_id IS NOT NULL
    ),
    matrices AS (
        SELECT
            source_id,
            external_id,
            operator,
            dtype,
            dims[if(operator IN ('aten::addmm', 'aten::baddbmm'), 2, 1)] AS a,
            dims[if(operator IN ('aten::addmm', 'aten::baddbmm'), 3, 2)] AS b
        FROM products
        WHERE dims IS NOT NULL
    ),
    sized AS (
        SELECT
            source_id,
            external_id,
            operator,
            dtype,
            2.0 * list_product(a) * b[-1] AS flops,
            list_product(a) + list_product(b) + list_product(a) / a[-1] * b[-1] AS elements
        FROM matrices
        WHERE len(a) = len(b) AND len(a) IN (2, 3) AND a[-1] = b[-2] AND list_product(a) > 0
    ),
    kernels AS (
        SELECT
            attempt,
            rank,
            source_id,
            external_id,
            CAST(sum(dur_ns) AS BIGINT) AS kernel_ns
        FROM gpu_op
        WHERE class = 'compute' AND rank IS NOT NULL
        GROUP BY attempt, rank, source_id, external_id
    ),
    totals AS (
        SELECT attempt, rank, sum(kernel_ns) AS total_ns FROM kernels GROUP BY attempt, rank
    ),
    models AS (
        SELECT attempt, rank, any_value(device_model ORDER BY device_model) AS gpu_model
        FROM rank
        GROUP BY attempt, rank
    )
SELECT
    k.rank,
    s.operator,
    s.dtype,
    count(*) AS calls_count,
    sum(s.flops) AS total_flops,
    sum(s.elements) AS total_elements,
    CAST(sum(k.kernel_ns) AS BIGINT) AS kernel_ns,
    sum(s.flops) * 1e9 / nullif(sum(k.kernel_ns), 0) AS flops_per_s,
    sum(k.kernel_ns) / nullif(any_value(t.total_ns), 0) AS kernel_ratio,
    any_value(m.gpu_model) AS gpu_model,
    k.attempt
FROM sized AS s
INNER JOIN kernels AS k USING (source_id, external_id)
INNER JOIN totals AS t ON t.attempt = k.attempt AND t.rank = k.rank
LEFT JOIN models AS m ON m.attempt = k.attempt AND m.rank = k.rank
GROUP BY k.attempt, k.rank, s.operator, s.dtype
ORDER BY k.attempt, k.rank, s.operator, s.dtype;
