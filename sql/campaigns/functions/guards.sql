-- Triggers that refuse forbidden changes for every client, the owner included: transitions that the state machines do
-- not allow, changes of facts, and deletions. Their functions belong to tenancy.

-- Audience and content

create or replace trigger leads_stay_where_they_are
    before update of id, tenant_id, workspace_id, identity on execution.leads
    for each row
    when (old.id <> new.id or old.tenant_id <> new.tenant_id or old.workspace_id <> new.workspace_id
          or old.identity <> new.identity)
    execute function tenancy.refuse_change('a lead stays who it is');

create or replace trigger assets_never_change
    before update or delete on execution.assets
    for each row
    execute function tenancy.refuse_change('a version of an asset never changes; create the next one');
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
    execute function tenancy.refuse_change('campaign runs are never removed');
create or replace trigger campaign_runs_are_never_emptied
    before truncate on execution.campaign_runs
    for each statement
    execute function tenancy.refuse_change('campaign runs are never removed');

-- Send jobs

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
    execute function tenancy.refuse_change('a send job that has ended never changes');
create or replace trigger job_queue_intentions_are_facts
    before update of id, tenant_id, workspace_id, run_id, position, job_type, item_ids, max_attempts, created_at
    on execution.job_queue
    for each row
    execute function tenancy.refuse_change('the items and limits of a send job never change');
create or replace trigger job_queue_is_never_removed_from
    before delete on execution.job_queue
    for each row
    execute function tenancy.refuse_change('send jobs are never removed');
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
    execute function tenancy.refuse_change('an item that has ended never changes; sending again is a new run');
create or replace trigger channel_outbox_doubts_end_with_the_item
    after update on execution.channel_outbox
    for each row
    when (old.in_doubt_since is not null and new.in_doubt_since is null and new.status = 'queued')
    execute function tenancy.refuse_change('an item stays in doubt until it is known how it ended');
create or replace trigger channel_outbox_moves_once
    after update of moved_to_account_id on execution.channel_outbox
    for each row
    when (old.moved_to_account_id is not null or old.status <> 'queued' or old.in_doubt_since is not null
          or new.moved_to_account_id is null)
    execute function tenancy.refuse_change('an item moves to another account once, and only while nothing was sent');
create or replace trigger channel_outbox_reservations_are_facts
    after update of id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient,
                    idempotency_key, reserved_by, attempt, message_hash, created_at
    on execution.channel_outbox
    for each row
    execute function tenancy.refuse_change('a reservation stays as it was made');
create or replace trigger channel_outbox_is_never_removed_from
    before delete on execution.channel_outbox
    for each row
    execute function tenancy.refuse_change('a key that was used stays used');
create or replace trigger channel_outbox_is_never_emptied
    before truncate on execution.channel_outbox
    for each statement
    execute function tenancy.refuse_change('a key that was used stays used');

create or replace trigger provider_callbacks_are_facts
    before update or delete on execution.provider_callbacks
    for each row
    execute function tenancy.refuse_change('a provider''s report never changes');

-- History

create or replace trigger campaign_audit_log_is_append_only
    before update or delete on execution.campaign_audit_log
    for each row
    execute function tenancy.refuse_change('the audit log is append-only');
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
    execute function tenancy.refuse_change('readers may still ask for it');
create or replace trigger campaign_events_are_never_emptied
    before truncate on execution.campaign_events
    for each statement
    execute function tenancy.refuse_change('an event of a campaign never changes');
