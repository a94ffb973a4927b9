-- The opponent: the outbox of replies without anything that guards it. Same columns, same storage, same indexes.
create table raw.replies (like channels.channel_outbox including defaults including indexes) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
