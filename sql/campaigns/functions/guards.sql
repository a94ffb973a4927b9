-- Triggers that refuse forbidden changes for every client, the owner included: transitions that the state machines do
-- not allow, changes of facts, and deletions. Their functions belong to tenancy.

-- Audience and content

create or replace trigger leads_stay_where_they_are
    before update of id, tenant_id, workspace_id, identity on execution.leads
    for each row
    when (old.id <> new.id or old.tenant_id <> new.tenant_id or old.workspace_id <> new.workspace_id
          or old.identity <> new.identity
             and not (old.erasing_since is not null and old.erased_at is null and new.erased_at is not null))
    execute function tenancy.refuse_change('a lead stays who it is');
create or replace trigger leads_erased_are_final
    before update on execution.leads
    for each row
    when (old.erased_at is not null)
    execute function tenancy.refuse_change('a lead that was erased never changes');

create or replace function execution.require_erasure()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from execution.erasures as erasure where erasure.tenant_id = new.tenant_id and erasure.lead_id = new.id) then
        raise exception 'execution.leads: an erasure is recorded'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;
revoke all on function execution.require_erasure() from public;
comment on function execution.require_erasure() is
    'Trigger function: refuses to erase a lead without a row in execution.erasures.';
create or replace trigger leads_erasures_are_recorded
    before update of erased_at on execution.leads
    for each row
    when (new.erased_at is not null)
    execute function execution.require_erasure();
create or replace trigger erasures_are_facts
    before update or delete on execution.erasures
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('what was erased stays recorded');
create or replace trigger erasures_are_never_emptied
    before truncate on execution.erasures
    for each statement
    execute function tenancy.refuse_change('what was erased stays recorded');

create or replace trigger assets_never_change
    before update or delete on execution.assets
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('a version of an asset never changes; create the next one');
create or replace trigger assets_are_never_emptied
    before truncate on execution.assets
    for each statement
    execute function tenancy.refuse_change('a version of an asset never changes; create the next one');

-- Phases

create or replace trigger campaign_phases_change_as_the_table_says
    before update of status on execution.campaign_phases
    for each row
    when ((old.status, new.status) not in (('not_started', 'in_progress'),
                                           ('in_progress', 'paused'),
                                           ('paused', 'in_progress'),
                                           ('in_progress', 'completed'),
                                           ('in_progress', 'failed'),
                                           ('completed', 'in_progress'),
                                           ('failed', 'in_progress')))
    execute function tenancy.refuse_change('a phase does not change like this');

-- Runs

create or replace trigger campaign_runs_change_as_the_table_says
    before update of status on execution.campaign_runs
    for each row
    when ((old.status, new.status) not in (('queued', 'running'),
                                           ('running', 'completed'),
                                           ('running', 'partial'),
                                           ('running', 'failed')))
    execute function tenancy.refuse_change('a run does not change like this');
create or replace trigger campaign_runs_ends_are_final
    before update on execution.campaign_runs
    for each row
    when (old.status in ('completed', 'partial', 'failed'))
    execute function tenancy.refuse_change('a run that has ended never changes');
create or replace trigger campaign_runs_are_facts
    before update of id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id,
                     provider, failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address,
                     correlation_id, created_at
    on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('a deployed run never changes');
create or replace trigger campaign_runs_causes_are_facts
    before update of cause, number on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('a deployed run never changes');
create or replace trigger campaign_runs_are_never_removed
    before delete on execution.campaign_runs
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('campaign runs are never removed');
create or replace trigger campaign_runs_are_never_emptied
    before truncate on execution.campaign_runs
    for each statement
    execute function tenancy.refuse_change('campaign runs are never removed');

create or replace function execution.refuse_unless_launched()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select
                 from execution.campaign_runs as run
                where run.tenant_id = new.tenant_id
                  and run.id = new.run_id
                  and run.status in ('completed', 'partial', 'failed'))
       and not exists (select
                         from execution.job_queue as job
                        where job.tenant_id = new.tenant_id
                          and job.run_id = new.run_id
                          and job.status not in ('completed', 'dead'))
       and not exists (select
                         from execution.channel_outbox as item
                        where item.tenant_id = new.tenant_id
                          and item.run_id = new.run_id
                          and item.status = 'queued')
    then
        return new;
    end if;
    raise exception 'execution.run_archives: only a run that has ended, without an item in doubt, is archived'
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function execution.refuse_unless_launched() from public;
comment on function execution.refuse_unless_launched() is
    'Trigger function: refuses to archive a run that has not ended, or that has an item in flight or in doubt.';
create or replace trigger run_archives_are_of_ended_runs
    before insert on execution.run_archives
    for each row
    execute function execution.refuse_unless_launched();
create or replace trigger run_archives_are_facts
    before update on execution.run_archives
    for each row
    when (old.removed_at is not null or new.removed_at is null
          or (old.tenant_id, old.run_id, old.archived_at, old.exported_to, old.jobs_completed, old.jobs_dead, old.sent,
              old.called, old.posted, old.failed, old.skipped, old.missing)
             is distinct from (new.tenant_id, new.run_id, new.archived_at, new.exported_to, new.jobs_completed, new.jobs_dead,
                               new.sent, new.called, new.posted, new.failed, new.skipped, new.missing))
    execute function tenancy.refuse_change('a certificate stays as it was written');
create or replace trigger run_archives_are_never_removed
    before delete on execution.run_archives
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('a certificate stays as it was written');
create or replace trigger run_archives_are_never_emptied
    before truncate on execution.run_archives
    for each statement
    execute function tenancy.refuse_change('a certificate stays as it was written');

create or replace function execution.refuse_unless_archived()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select
                 from execution.run_archives as archive
                where archive.tenant_id = old.tenant_id
                  and archive.run_id = old.run_id)
       or exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null)
    then
        return old;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function execution.refuse_unless_archived() from public;
comment on function execution.refuse_unless_archived() is
    'Trigger function: refuses to delete a row of a run that is not archived, unless its tenant is being removed. The trigger '
    'argument is the reason in the error.';

-- Send jobs

create or replace function execution.refuse_jobs_of_archived_runs()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- begin_removal locks this row, so no send job is added during a removal, which deletes the items after the send jobs.
    perform
       from tenancy.tenants as tenant
      where tenant.id = new.tenant_id
        and tenant.removing_since is null
        for key share;
    if not found then
        raise exception 'execution.job_queue: a tenant that is being removed gets no jobs'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    if exists (select
                 from execution.run_archives as archive
                where archive.tenant_id = new.tenant_id
                  and archive.run_id = new.run_id)
    then
        raise exception 'execution.job_queue: an archived run gets no jobs, so no key of it is reserved again'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;
revoke all on function execution.refuse_jobs_of_archived_runs() from public;
comment on function execution.refuse_jobs_of_archived_runs() is
    'Trigger function: refuses a job of an archived run, or of a tenant that is being removed. verify_launch checks that the '
    'trigger exists.';
create or replace trigger job_queue_has_none_of_archived_runs
    before insert on execution.job_queue
    for each row
    execute function execution.refuse_jobs_of_archived_runs();

create or replace trigger job_queue_changes_as_the_table_says
    before update of status on execution.job_queue
    for each row
    when ((old.status, new.status) not in (('queued', 'locked'),
                                           ('locked', 'completed'),
                                           ('locked', 'failed'),
                                           ('locked', 'queued'),
                                           ('failed', 'queued'),
                                           ('failed', 'dead')))
    execute function tenancy.refuse_change('a send job does not change like this');
create or replace trigger job_queue_ends_are_final
    before update on execution.job_queue
    for each row
    when (old.status in ('completed', 'dead'))
    execute function tenancy.refuse_unless_erased_or_removed('a send job that has ended never changes', 'last_error');
create or replace trigger job_queue_intentions_are_facts
    before update of id, tenant_id, workspace_id, run_id, position, job_type, item_ids, max_attempts, created_at
    on execution.job_queue
    for each row
    execute function tenancy.refuse_change('the items and limits of a send job never change');
create or replace trigger job_queue_is_never_removed_from
    before delete on execution.job_queue
    for each row
    execute function execution.refuse_unless_archived('send jobs are never removed');
create or replace trigger job_queue_is_never_emptied
    before truncate on execution.job_queue
    for each statement
    execute function tenancy.refuse_change('send jobs are never removed');

-- Outbox. The guards of updates fire after the change: Postgres would lock each row once more for a trigger before it.
-- verify_launch checks five of these triggers by name.

create or replace trigger channel_outbox_waits_for_adoption
    before insert on execution.channel_outbox
    for each statement
    execute function tenancy.require_sending_allowed();
create or replace trigger channel_outbox_ends_are_final
    after update on execution.channel_outbox
    for each row
    when (old.status <> 'queued')
    execute function tenancy.refuse_unless_erased_or_removed(
        'an item that has ended never changes; sending again is a new run', 'recipient', 'error', 'message_hash');
create or replace trigger channel_outbox_doubts_end_with_the_item
    after update on execution.channel_outbox
    for each row
    when (old.in_doubt_since is not null and new.in_doubt_since is null and new.status = 'queued')
    execute function tenancy.refuse_change('an item stays in doubt until it is known how it ended');
create or replace trigger channel_outbox_moves_once
    after update of moved_to_account_id on execution.channel_outbox
    for each row
    when ((old.moved_to_account_id is not null or old.status <> 'queued' or old.in_doubt_since is not null
           or new.moved_to_account_id is null)
          -- An item that was put back is reserved for its own account again.
          and (old.reserved_by is not null or new.moved_to_account_id is not null))
    execute function tenancy.refuse_change('an item moves to another account once, and only while nothing was sent');
create or replace trigger channel_outbox_reservations_are_facts
    after update of id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient,
                    idempotency_key, reserved_by, attempt, message_hash, created_at
    on execution.channel_outbox
    for each row
    -- Except that an item that was provably not sent loses its worker, and is reserved again by the next one.
    when (old.status <> 'queued' or old.in_doubt_since is not null
          or (old.id, old.tenant_id, old.workspace_id, old.run_id, old.job_id, old.channel, old.provider, old.recipient_id,
              old.idempotency_key)
             is distinct from (new.id, new.tenant_id, new.workspace_id, new.run_id, new.job_id, new.channel, new.provider,
                               new.recipient_id, new.idempotency_key)
          or old.reserved_by is not null
             and (new.reserved_by is not null or new.status <> 'queued' or new.in_doubt_since is not null
                  or (old.recipient, old.message_hash, old.created_at)
                     is distinct from (new.recipient, new.message_hash, new.created_at)))
    execute function tenancy.refuse_unless_erased_or_removed(
        'a reservation stays as it was made', 'recipient', 'error', 'message_hash');
create or replace trigger channel_outbox_is_never_removed_from
    before delete on execution.channel_outbox
    for each row
    execute function execution.refuse_unless_archived('a key that was used stays used');
create or replace trigger channel_outbox_is_never_emptied
    before truncate on execution.channel_outbox
    for each statement
    execute function tenancy.refuse_change('a key that was used stays used');

create or replace function execution.refuse_change_of_callback()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'DELETE'
       and (exists (select from execution.erasures as erasure where erasure.tenant_id = old.tenant_id and erasure.at = now())
            or exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null)
            or exists (select
                         from execution.channel_outbox as item
                              join execution.run_archives as archive
                                on archive.tenant_id = item.tenant_id and archive.run_id = item.run_id
                        where item.idempotency_key = old.idempotency_key
                          and item.tenant_id = old.tenant_id))
    then
        return old;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function execution.refuse_change_of_callback() from public;
comment on function execution.refuse_change_of_callback() is
    'Trigger function: refuses every change of a callback, and its deletion unless its run is archived, its tenant is being '
    'removed, or this transaction records an erasure.';
create or replace trigger provider_callbacks_are_facts
    before update or delete on execution.provider_callbacks
    for each row
    execute function execution.refuse_change_of_callback('a provider''s report never changes');

-- History

create or replace trigger campaign_audit_log_is_append_only
    before update or delete on execution.campaign_audit_log
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('the audit log is append-only', 'note');
create or replace trigger campaign_audit_log_is_never_emptied
    before truncate on execution.campaign_audit_log
    for each statement
    execute function tenancy.refuse_change('the audit log is append-only');
create or replace trigger campaign_events_are_facts
    before update on execution.campaign_events
    for each row
    execute function tenancy.refuse_change('an event of a campaign never changes');
create or replace trigger campaign_events_stay_for_an_hour
    before delete on execution.campaign_events
    for each row
    when (old.at > now() - interval '1 hour')
    execute function tenancy.refuse_unless_erased_or_removed('readers may still ask for it');
create or replace trigger campaign_events_are_never_emptied
    before truncate on execution.campaign_events
    for each statement
    execute function tenancy.refuse_change('an event of a campaign never changes');
