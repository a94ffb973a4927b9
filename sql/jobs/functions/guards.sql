-- Row-level security, grants, and triggers that reject illegal changes, of the tables in schema jobs.

-- A table that has its policies keeps them.
select tenancy.protect(wanted.name)
  from (values ('jobs.functions'::regclass),
               ('jobs.schedules'),
               ('jobs.job_runs'),
               ('jobs.schedule_firings'),
               ('jobs.sync_errors'),
               ('jobs.alert_instances'),
               ('jobs.decision_cards'),
               ('jobs.alert_notifications')) as wanted (name)
 where not exists (select from pg_catalog.pg_policy where polrelid = wanted.name);

-- All columns but sealed_secret. Only claim_runs returns the secret, sealed.
grant select (id, tenant_id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms,
              backoff_multiplier, max_delay_ms, created_at, updated_at)
    on jobs.functions
    to postrider_app, postrider_worker, postrider_read;
-- Names of functions belong to the installation, so every tenant sees all of them.
grant select on
    jobs.provided_functions,
    jobs.schedules,
    jobs.job_runs,
    jobs.schedule_firings,
    jobs.sync_errors,
    jobs.alert_instances,
    jobs.decision_cards,
    jobs.alert_notifications
    to postrider_app, postrider_worker, postrider_read;

-- tenancy.refuse_other_master_key locks the registered key. The update trigger ignores an update that keeps the
-- secret, so that it does not wait for a rotation that waits for the row.
create or replace trigger functions_are_sealed_under_one_key
    before insert on jobs.functions
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create or replace trigger functions_stay_sealed_under_one_key
    before update of sealed_secret on jobs.functions
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();

create or replace trigger job_runs_change_as_they_may
    before update of status on jobs.job_runs
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('running', 'completed'), ('running', 'failed'), ('running', 'cancelled'),
        ('failed', 'running'), ('failed', 'cancelled')))
    execute function tenancy.refuse_change(
        'a run goes from running to completed, failed or cancelled, and from failed back to running or to cancelled');
create or replace trigger job_runs_retries_are_true
    before update on jobs.job_runs
    for each row
    when (new.retry_count <> old.retry_count + (old.status = 'failed' and new.status = 'running')::integer)
    execute function tenancy.refuse_change('retry_count says how often a run went from failed to running');
create or replace trigger job_runs_are_facts
    before update of id, tenant_id, function_name, lock_key, input_params, created_at, schedule_id, scheduled_for,
                     grain, grain_start, is_forced
    on jobs.job_runs
    for each row
    execute function tenancy.refuse_change('the input of a job run never changes');
create or replace trigger job_runs_active_ones_are_kept
    before delete on jobs.job_runs
    for each row
    when (old.status = 'running' or old.retry_at is not null)
    execute function tenancy.refuse_unless_erased_or_removed('a run that is not over cannot be removed');
create or replace trigger job_runs_are_never_emptied
    before truncate on jobs.job_runs
    for each statement
    execute function tenancy.refuse_change('runs are removed by prune_runs, once they are over');

create or replace trigger schedule_firings_are_decided_once
    before update on jobs.schedule_firings
    for each row
    when (old.outcome <> 'waiting' or old.tenant_id <> new.tenant_id or old.schedule_id <> new.schedule_id
          or old.fire_at <> new.fire_at)
    execute function tenancy.refuse_change('a firing is decided once');

create or replace trigger sync_errors_resolved_for_ever
    before update on jobs.sync_errors
    for each row
    when (old.is_resolved)
    execute function tenancy.refuse_change('a resolved dead letter never changes');
create or replace trigger sync_errors_open_ones_are_kept
    before delete on jobs.sync_errors
    for each row
    when (not old.is_resolved)
    execute function tenancy.refuse_unless_erased_or_removed('an unresolved error cannot be removed');
create or replace trigger sync_errors_are_never_emptied
    before truncate on jobs.sync_errors
    for each statement
    execute function tenancy.refuse_change('errors are removed by prune_runs, once they are resolved');

create or replace trigger alert_instances_resolved_for_ever
    before update on jobs.alert_instances
    for each row
    when (old.status = 'resolved')
    execute function tenancy.refuse_change('an alert that is resolved stays so; what happens again is a new one');
create or replace trigger alert_instances_are_facts
    before update of id, tenant_id, alert_config_id, external_object_id, created_at on jobs.alert_instances
    for each row
    execute function tenancy.refuse_change('an alert stays about what it was raised for');

create or replace trigger decision_cards_change_as_they_may
    before update of status on jobs.decision_cards
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('OPEN', 'IN_PROGRESS'), ('OPEN', 'RESOLVED'), ('OPEN', 'DISMISSED'),
        ('IN_PROGRESS', 'OPEN'), ('IN_PROGRESS', 'RESOLVED'), ('IN_PROGRESS', 'DISMISSED')))
    execute function tenancy.refuse_change('a card that is resolved or dismissed stays so');

create or replace trigger alert_notifications_change_as_they_may
    before update of status on jobs.alert_notifications
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (('queued', 'sent'), ('queued', 'failed')))
    execute function tenancy.refuse_change('a notification that was sent or failed stays so');
