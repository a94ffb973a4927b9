-- The adoption of a restored copy: a new epoch, in which everything that the original may have sent is in doubt
-- (decision 0019).

create or replace function tenancy.count_unfinished(
    out reserved_items bigint, out begun_items bigint, out replies bigint, out notifications bigint,
    out schedules bigint, out firings bigint, out campaigns bigint, out events bigint, out job_runs bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from execution.channel_outbox as item where item.status = 'queued'),
           (select coalesce(sum(cardinality(job.item_ids)
                                - (select count(*)
                                     from execution.channel_outbox as item
                                    where item.tenant_id = job.tenant_id
                                      and item.job_id = job.id)), 0)::bigint
              from execution.job_queue as job
                   join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
             where job.status in ('queued', 'locked', 'failed')
               and (run.scheduled_for is null or run.scheduled_for <= now())),
           (select count(*) from channels.channel_outbox as reply where reply.status in ('pending', 'sending')),
           (select count(*) from jobs.alert_notifications as notification where notification.status = 'queued'),
           (select count(*) from jobs.schedules as schedule where schedule.enabled and schedule.next_fire_at <= now()),
           (select count(*) from jobs.schedule_firings as firing where firing.outcome = 'waiting'),
           (select count(*)
              from execution.campaigns as campaign
             where campaign.auto_advance
               and exists (select from execution.campaign_phases as phase
                            where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                              and phase.status <> 'not_started')
               and exists (select from execution.campaign_phases as phase
                            where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                              and phase.status = 'not_started')),
           (select count(*) from m10_recovery.outbox as event where event.processed_at is null),
           (select count(*) from jobs.job_runs as run where run.status = 'running' or run.retry_at is not null)
$$;
revoke all on function tenancy.count_unfinished() from public;
comment on function tenancy.count_unfinished() is
    'Counts the rows of all tenants that an adoption would change, and the unfinished events and job runs.';

create or replace function tenancy.begin_epoch(p_cause text, p_reason text, p_actor text)
returns table (
    installation_id uuid, number integer, cause text, items_in_doubt bigint, replies_in_doubt bigint,
    campaigns_stopped bigint, firings_skipped bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before tenancy.epochs;
    v_epoch tenancy.epochs;
    v_tenant_id uuid;
    v_adopted record;
begin
    lock table tenancy.epochs in share row exclusive mode;
    select epoch.* into v_before from tenancy.epochs as epoch order by epoch.number desc limit 1;
    if v_before.number is null then
        raise exception 'no process has ever sent from this database, so there is nothing to adopt'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.epochs
           (number, installation_id, cause, system_identifier, database_oid, database_name, table_oid, timeline, actor, reason,
            copied_after)
    select v_before.number + 1, v_before.installation_id, p_cause, here.system_identifier, here.database_oid, here.database_name,
           here.table_oid, here.timeline, p_actor, left(p_reason, 2000),
           coalesce((select max(known.marked_at) from tenancy.process_marks as known where known.epoch_id = v_before.id),
                    v_before.began_at)
      from tenancy.database_identity() as here
    returning * into v_epoch;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (tenancy.system_tenant_id(), p_actor, 'installation.' || p_cause, 'installation:' || v_epoch.installation_id,
            left(p_reason, 2000));
    if p_cause = 'adopted' then
        for v_tenant_id in select tenant.id from tenancy.tenants as tenant order by tenant.id loop
            select adopted.* into v_adopted
              from tenancy.adopt_tenant(v_tenant_id, v_epoch.id, v_epoch.copied_after, p_actor) as adopted;
            v_epoch.items_in_doubt := v_epoch.items_in_doubt + v_adopted.items;
            v_epoch.replies_in_doubt := v_epoch.replies_in_doubt + v_adopted.replies;
            v_epoch.campaigns_stopped := v_epoch.campaigns_stopped + v_adopted.campaigns;
            v_epoch.firings_skipped := v_epoch.firings_skipped + v_adopted.firings;
        end loop;
        update tenancy.epochs as epoch
           set items_in_doubt = v_epoch.items_in_doubt,
               replies_in_doubt = v_epoch.replies_in_doubt,
               firings_skipped = v_epoch.firings_skipped,
               campaigns_stopped = v_epoch.campaigns_stopped
         where epoch.number = v_epoch.number;
    end if;
    return query
        select v_epoch.installation_id, v_epoch.number, v_epoch.cause, v_epoch.items_in_doubt, v_epoch.replies_in_doubt,
               v_epoch.campaigns_stopped, v_epoch.firings_skipped;
end
$$;
revoke all on function tenancy.begin_epoch(text, text, text) from public;
comment on function tenancy.begin_epoch(text, text, text) is
    'Begins another epoch, in which this database is the installation. With cause `adopted`, everything that the '
    'original may have sent after the copy was taken becomes in doubt, tenant by tenant in one transaction; with cause '
    '`moved` nothing does. Only members of the owner role may call it.';

create or replace function tenancy.adopt_tenant(
    p_tenant_id uuid, p_epoch_id uuid, p_copied_after timestamptz, p_actor text,
    out items bigint, out replies bigint, out campaigns bigint, out firings bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    c_note constant text := 'adopted after a restore: it may have been called after the copy was taken';
    v_now constant timestamptz := now();
    v_more bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- The original may have sent single messages that wait here. In runs, they become in doubt below.
    loop
        exit when execution.group_messages(p_tenant_id, p_actor) = 0;
    end loop;
    -- Send jobs are locked before their items, as in every function. Their workers are gone; the lost claim counts as
    -- no attempt.
    update execution.job_queue as job
       set status = 'queued',
           attempts = greatest(job.attempts - 1, 0),
           locked_by = null,
           locked_at = null,
           run_after = case when phase.status = 'paused' then 'infinity'::timestamptz else v_now end
      from execution.campaign_runs as run
           left join execution.campaign_phases as phase on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.tenant_id = p_tenant_id
       and job.status = 'locked'
       and run.tenant_id = p_tenant_id
       and run.id = job.run_id;

    with doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = v_now,
               error = coalesce(item.error, c_note)
         where item.tenant_id = p_tenant_id
           and item.status = 'queued'
     returning item.id, item.run_id, item.job_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_actor, 'item.adopted', c_note
      from doubted;
    get diagnostics items = row_count;
    -- Their resolvers are gone, and the quiet time starts again: the original may have repeated a call.
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = v_now
     where doubt.tenant_id = p_tenant_id
       and (doubt.held_by is not null or doubt.next_look_at > v_now);

    with begun as (
        insert into execution.channel_outbox
               (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key, status, error,
                reserved_by, attempt, created_at, in_doubt_since)
        select p_tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
               coalesce(message.recipient, case run.channel when 'email' then lead.email when 'voice' then lead.phone end),
               execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'queued', c_note,
               'adoption-' || p_epoch_id, job.attempts, greatest(run.created_at, p_copied_after), v_now
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               cross join unnest(job.item_ids) as item (id)
               left join execution.leads as lead on lead.tenant_id = job.tenant_id and lead.id = item.id
               left join execution.messages as message on message.tenant_id = job.tenant_id and message.id = item.id
         where job.tenant_id = p_tenant_id
           and job.status in ('queued', 'failed')
           and (run.scheduled_for is null or run.scheduled_for <= v_now)
            on conflict (tenant_id, workspace_id, idempotency_key) do nothing
     returning id, run_id, job_id
    ), followed as (
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
        select begun.id, p_tenant_id, account.id, account.provider, run.campaign_id, v_now
          from begun
               join execution.campaign_runs as run on run.tenant_id = p_tenant_id and run.id = begun.run_id
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
            on conflict do nothing
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, begun.run_id, begun.job_id, begun.id, p_actor, 'item.adopted', c_note
      from begun;
    get diagnostics v_more = row_count;
    items := items + v_more;

    -- The original may have started the next phase under keys that this database does not have, so an operator starts
    -- it.
    with stopped as (
        update execution.campaigns as campaign
           set auto_advance = false,
               not_advanced = 'adopted after a restore: its next phase may have been started from the original; start it by hand'
         where campaign.tenant_id = p_tenant_id
           and campaign.auto_advance
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status <> 'not_started')
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status = 'not_started')
     returning campaign.id
    )
    insert into execution.campaign_audit_log (tenant_id, campaign_id, actor, action, note)
    select p_tenant_id, stopped.id, p_actor, 'campaign.adopted', 'its next phase is started by hand'
      from stopped;
    get diagnostics campaigns = row_count;
    update execution.campaign_phases as phase
       set due = null
     where phase.tenant_id = p_tenant_id
       and phase.due = 'advance';

    -- The dispatcher looks up a reply in doubt first, where the provider can be asked.
    update channels.channel_outbox as reply
       set status = 'pending',
           in_doubt_since = coalesce(reply.in_doubt_since, v_now),
           locked_at = null,
           locked_by = null,
           next_attempt_at = case reply.status when 'sending' then v_now else reply.next_attempt_at end,
           last_error = c_note,
           updated_at = v_now
     where reply.tenant_id = p_tenant_id
       and reply.status in ('pending', 'sending');
    get diagnostics replies = row_count;
    update jobs.alert_notifications as notification
       set first_called_at = coalesce(notification.first_called_at, greatest(notification.created_at, p_copied_after)),
           called_at = v_now,
           in_doubt_since = coalesce(notification.in_doubt_since, v_now),
           claims = notification.claims + 1,
           last_error = c_note,
           updated_at = v_now
     where notification.tenant_id = p_tenant_id
       and notification.status = 'queued';

    update jobs.schedule_firings as firing
       set outcome = 'skipped',
           reason = c_note,
           decided_at = v_now
     where firing.tenant_id = p_tenant_id
       and firing.outcome = 'waiting';
    get diagnostics firings = row_count;
end
$$;
revoke all on function tenancy.adopt_tenant(uuid, uuid, timestamptz, text) from public;
comment on function tenancy.adopt_tenant(uuid, uuid, timestamptz, text) is
    'Makes everything in doubt that the original may have sent for this tenant after the copy was taken, and counts it. '
    'begin_epoch calls it for every tenant.';

create or replace function tenancy.skip_firings(
    p_tenant_id uuid, p_schedule_id uuid, p_due timestamptz, p_version integer, p_skipped_at timestamptz,
    p_next_fire_at timestamptz)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if jobs.fire_schedule(p_tenant_id, p_schedule_id, p_due, p_version, '{}', '{}', p_skipped_at,
                          'adopted after a restore: the original may have fired it', p_next_fire_at) is null
    then
        return false;
    end if;
    update tenancy.epochs as epoch
       set firings_skipped = epoch.firings_skipped + 1
     where epoch.number = (select max(newest.number) from tenancy.epochs as newest);
    return true;
end
$$;
revoke all on function tenancy.skip_firings(uuid, uuid, timestamptz, integer, timestamptz, timestamptz) from public;
comment on function tenancy.skip_firings(uuid, uuid, timestamptz, integer, timestamptz, timestamptz) is
    'Moves a schedule past the times at which the original may have fired it. Returns false if the schedule changed '
    'meanwhile. Only members of the owner role may call it.';
