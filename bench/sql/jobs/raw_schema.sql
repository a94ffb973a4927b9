-- The raw side: job runs without triggers. Same columns, storage and indexes.
create table raw.job_runs (like jobs.job_runs including defaults including generated including indexes) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
