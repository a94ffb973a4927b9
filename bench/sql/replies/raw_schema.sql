-- The raw side: the outbox of replies without triggers. Same columns, storage and indexes.
create table raw.replies (like channels.channel_outbox including defaults including indexes) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
