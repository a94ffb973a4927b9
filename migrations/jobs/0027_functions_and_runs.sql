-- Scheduled jobs: functions, when they run, what became of each run, and what people must look at.
-- Safe beside running workers: it adds tables and touches no other.

-- What can be run. A function of kind `http` has a secret, sealed to its row, with which requests to it are signed.
create table jobs.functions (
    id                 uuid             not null,
    tenant_id          uuid             not null references tenancy.tenants (id),
    name               text             not null,
    kind               text             not null,
    target             text             not null,
    grain              text             not null default 'day',
    timeout_seconds    integer          not null default 60,
    max_retries        integer          not null default 3,
    initial_delay_ms   integer          not null default 1000,
    backoff_multiplier double precision not null default 5,
    max_delay_ms       integer          not null default 30000,
    sealed_secret      bytea,
    created_at         timestamptz      not null default now(),
    updated_at         timestamptz      not null default now(),
    primary key (tenant_id, id),
    constraint functions_one_per_name unique (tenant_id, name),
    -- No colon: the name is a part of lock keys.
    constraint functions_name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    constraint functions_kind_check check (kind in ('http', 'sql', 'builtin')),
    constraint functions_target_is_given check (btrim(target) <> '' and octet_length(target) <= 2048),
    constraint functions_requests_are_signed check ((kind = 'http') = (sealed_secret is not null)),
    constraint functions_grain_check check (grain in ('day', 'hour', '5min')),
    constraint functions_timeout_is_bounded check (timeout_seconds between 1 and 900),
    constraint functions_retries_are_bounded
        check (max_retries between 0 and 100 and initial_delay_ms between 0 and 86400000
               and backoff_multiplier between 1 and 100 and max_delay_ms between 0 and 86400000)
);
select tenancy.protect('jobs.functions');

-- When a function runs by itself. `next_fire_at` is the one thing that says so; whoever fires moves it on in the same
-- transaction, so that any number of schedulers may try. `version` changes with the rest of the row.
create table jobs.schedules (
    id            uuid        not null,
    tenant_id     uuid        not null references tenancy.tenants (id),
    function_name text        not null,
    cron          text        not null,
    timezone      text        not null,
    grain         text,
    input         jsonb,
    entities      json,
    entity_hash   text,
    depends_on    text[]      not null default '{}',
    misfire       text        not null default 'once',
    enabled       boolean     not null default true,
    next_fire_at  timestamptz,
    last_fire_at  timestamptz,
    version       integer     not null default 1,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint schedules_run_a_function
        foreign key (tenant_id, function_name) references jobs.functions (tenant_id, name),
    constraint schedules_cron_is_given check (btrim(cron) <> '' and octet_length(cron) <= 255),
    constraint schedules_timezone_is_given check (btrim(timezone) <> '' and octet_length(timezone) <= 255),
    constraint schedules_grain_check check (grain in ('day', 'hour', '5min')),
    constraint schedules_misfire_check check (misfire in ('skip', 'once', 'all')),
    constraint schedules_input_is_bounded check (pg_column_size(input) <= 1048576),
    constraint schedules_entities_have_their_hash
        check ((entities is null) = (entity_hash is null) and octet_length(entities::text) <= 65536),
    constraint schedules_dependencies_are_few check (cardinality(depends_on) <= 20)
);
create index schedules_due on jobs.schedules (next_fire_at) where enabled;
create index schedules_by_function on jobs.schedules (tenant_id, function_name);
select tenancy.protect('jobs.schedules');

-- One run of a function under a lock key. `claims` fences: whoever runs it names it, and only the newest may end the run.
--
--   running, nobody holds it   it waits for a runner
--   running, held              `heartbeat_at` says that its runner lives
--   failed, with `retry_at`    it waits for its next try
--   failed, without            for good: a row of `sync_errors` says so to people
create table jobs.job_runs (
    id            uuid        not null default jobs.new_id(),
    tenant_id     uuid        not null references tenancy.tenants (id),
    function_name text        not null,
    lock_key      text        not null,
    status        text        not null default 'running',
    input_params  jsonb,
    result        jsonb,
    error_message text,
    retry_count   integer     not null default 0,
    started_at    timestamptz not null default now(),
    completed_at  timestamptz,
    created_at    timestamptz not null default now(),
    duration_ms   integer     generated always as (
        case when completed_at is not null
             then least(extract(epoch from (completed_at - started_at)) * 1000, 2147483647)::integer
        end) stored,
    retry_at      timestamptz,
    heartbeat_at  timestamptz,
    schedule_id   uuid,
    scheduled_for timestamptz,
    grain         text        not null,
    grain_start   timestamptz not null,
    is_forced     boolean     not null default false,
    locked_by     text,
    claims        integer     not null default 0,
    primary key (id),
    constraint job_runs_by_tenant unique (tenant_id, id),
    constraint job_runs_status_check check (status in ('running', 'completed', 'failed', 'cancelled')),
    constraint job_runs_grain_check check (grain in ('day', 'hour', '5min')),
    constraint job_runs_only_running_has_no_end check ((status = 'running') = (completed_at is null)),
    constraint job_runs_only_running_is_held check (locked_by is null or status = 'running'),
    constraint job_runs_held_has_a_heartbeat check ((locked_by is null) = (heartbeat_at is null)),
    constraint job_runs_only_failed_is_retried check (retry_at is null or status = 'failed'),
    constraint job_runs_only_completed_has_a_result check (result is null or status = 'completed'),
    constraint job_runs_retries_are_counted check (retry_count >= 0 and claims >= 0),
    -- The programs allow 64 KiB of text, which can take far more room as numbers.
    constraint job_runs_input_is_bounded check (pg_column_size(input_params) <= 1048576),
    constraint job_runs_result_is_bounded check (pg_column_size(result) <= 1048576)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
create index idx_job_runs_tenant_function on jobs.job_runs (tenant_id, function_name, created_at desc);
create index idx_job_runs_status on jobs.job_runs (status) where status = 'running';
-- One at a time under a key, whether it runs or waits for its retry.
create unique index idx_job_runs_lock_active on jobs.job_runs (lock_key, tenant_id) where status = 'running' or retry_at is not null;
-- Once per grain. One index for running and completed, so that there is no moment between the two in which the key is free.
create unique index job_runs_once_per_grain
    on jobs.job_runs (lock_key, tenant_id)
    where not is_forced and (status in ('running', 'completed') or retry_at is not null);
-- What waits, tenant by tenant, in the order of its time.
create index job_runs_waiting
    on jobs.job_runs (tenant_id, (coalesce(retry_at, started_at)))
    where (status = 'running' and locked_by is null) or retry_at is not null;
create index job_runs_heartbeats on jobs.job_runs (heartbeat_at) where heartbeat_at is not null;
-- For what depends on a function, and for what is measured.
create index job_runs_completed on jobs.job_runs (tenant_id, function_name, grain_start) where status = 'completed';
create index job_runs_by_age on jobs.job_runs (created_at);
select tenancy.protect('jobs.job_runs');

create trigger job_runs_change_as_they_may
    before update of status on jobs.job_runs
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('running', 'completed'), ('running', 'failed'), ('running', 'cancelled'), ('failed', 'running'), ('failed', 'cancelled')))
    execute function tenancy.refuse_change('a run goes from running to completed, failed or cancelled, and from failed back to running or to cancelled');
create trigger job_runs_retries_are_true
    before update on jobs.job_runs
    for each row
    when (new.retry_count <> old.retry_count + (old.status = 'failed' and new.status = 'running')::integer)
    execute function tenancy.refuse_change('retry_count says how often a run went from failed to running');
create trigger job_runs_are_facts
    before update of id, tenant_id, function_name, lock_key, input_params, created_at, schedule_id, scheduled_for, grain, grain_start, is_forced
    on jobs.job_runs
    for each row
    execute function tenancy.refuse_change('what was invoked stays as it was invoked');
create trigger job_runs_active_ones_are_kept
    before delete on jobs.job_runs
    for each row
    when (old.status = 'running' or old.retry_at is not null)
    execute function tenancy.refuse_change('a run that is not over cannot be removed');
create trigger job_runs_are_never_emptied
    before truncate on jobs.job_runs
    for each statement
    execute function tenancy.refuse_change('runs are removed by prune_runs, once they are over');

-- What became of each firing: `started` (a run was made), `waiting` (for what it depends on), `skipped` (with the reason).
create table jobs.schedule_firings (
    tenant_id   uuid        not null,
    schedule_id uuid        not null,
    fire_at     timestamptz not null,
    outcome     text        not null,
    job_run_id  uuid,
    reason      text,
    created_at  timestamptz not null default now(),
    -- When somebody last looked whether a waiting one may go on: those that were not looked at for longest come first.
    looked_at   timestamptz not null default now(),
    decided_at  timestamptz,
    -- One row per firing, however many schedulers fire.
    primary key (tenant_id, schedule_id, fire_at),
    constraint schedule_firings_are_of_a_schedule
        foreign key (tenant_id, schedule_id) references jobs.schedules (tenant_id, id) on delete cascade,
    constraint schedule_firings_outcome_check check (outcome in ('started', 'waiting', 'skipped')),
    constraint schedule_firings_started_have_a_run check (outcome <> 'started' or job_run_id is not null),
    constraint schedule_firings_waiting_are_not_decided check ((outcome = 'waiting') = (decided_at is null))
);
create index schedule_firings_waiting on jobs.schedule_firings (looked_at) where outcome = 'waiting';
create index schedule_firings_by_age on jobs.schedule_firings (fire_at) where outcome <> 'waiting';
select tenancy.protect('jobs.schedule_firings');
create trigger schedule_firings_are_decided_once
    before update on jobs.schedule_firings
    for each row
    when (old.outcome <> 'waiting' or old.tenant_id <> new.tenant_id or old.schedule_id <> new.schedule_id or old.fire_at <> new.fire_at)
    execute function tenancy.refuse_change('a firing is decided once');

-- Dead letters: what a person must look at.
create table jobs.sync_errors (
    id                 uuid        not null default jobs.new_id(),
    tenant_id          uuid        not null references tenancy.tenants (id),
    error_type         text        not null,
    error_code         text        not null,
    error_message      text        not null,
    error_details      jsonb       not null default '{}',
    source_entity_type text        not null,
    source_entity_id   uuid        not null,
    is_resolved        boolean     not null default false,
    resolved_at        timestamptz,
    resolved_by        text,
    resolution_note    text,
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    primary key (id),
    constraint sync_errors_by_tenant unique (tenant_id, id),
    constraint sync_errors_code_check check (error_code in ('MAX_RETRIES_EXCEEDED', 'EXECUTION_ERROR')),
    constraint sync_errors_details_are_an_object check (jsonb_typeof(error_details) = 'object'),
    constraint sync_errors_resolved_say_by_whom
        check (is_resolved = (resolved_at is not null) and is_resolved = (resolved_by is not null))
);
create index sync_errors_by_id on jobs.sync_errors (tenant_id, is_resolved, id desc);
-- One open letter per run: a run that fails again says it again.
create unique index sync_errors_one_open_per_source
    on jobs.sync_errors (tenant_id, source_entity_type, source_entity_id) where not is_resolved;
create index sync_errors_by_age on jobs.sync_errors (resolved_at) where is_resolved;
select tenancy.protect('jobs.sync_errors');
create trigger sync_errors_resolved_for_ever
    before update on jobs.sync_errors
    for each row
    when (old.is_resolved)
    execute function tenancy.refuse_change('what was resolved stays as it is');
create trigger sync_errors_open_ones_are_kept
    before delete on jobs.sync_errors
    for each row
    when (not old.is_resolved)
    execute function tenancy.refuse_change('an error that nobody has resolved cannot be removed');
create trigger sync_errors_are_never_emptied
    before truncate on jobs.sync_errors
    for each statement
    execute function tenancy.refuse_change('errors are removed by prune_runs, once they are resolved');

grant select on jobs.schedules, jobs.job_runs, jobs.schedule_firings, jobs.sync_errors
    to postrider_app, postrider_worker, postrider_read;
-- Everything but the secret, which only `jobs.claim_runs` gives away, and sealed.
grant select (id, tenant_id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier,
              max_delay_ms, created_at, updated_at)
    on jobs.functions to postrider_app, postrider_worker, postrider_read;
