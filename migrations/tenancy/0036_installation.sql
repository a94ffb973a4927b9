-- The installation's identity, the marks that its processes write, and the adoption of a restored copy.
-- Safe beside running workers: it adds tables, one trigger that a worker of before passes, and functions; `verify_launch` keeps its
-- signature. The trigger takes a short lock on the items.

-- One row per epoch. The first epoch begins when a process with a sending role first starts on the database, and each adoption begins
-- another one; the newest counts. A row describes the database in which it was written: a copy of the row in another cluster, another
-- database or another table of this name shows that the database was restored. `suspected_at`: a process has found that the database
-- lacks what that process knows to be committed.
create table tenancy.epochs (
    number            integer     not null,
    id                uuid        not null default gen_random_uuid(),
    installation_id   uuid        not null,
    cause             text        not null,
    system_identifier text        not null,
    database_oid      bigint      not null,
    database_name     text        not null,
    table_oid         bigint      not null,
    timeline          integer,
    began_at          timestamptz not null default now(),
    actor             text        not null,
    reason            text,
    -- A lower bound of the time at which the copy was taken: what is not in it cannot have happened before.
    copied_after      timestamptz,
    items_in_doubt    bigint      not null default 0,
    replies_in_doubt  bigint      not null default 0,
    firings_skipped   bigint      not null default 0,
    campaigns_stopped bigint      not null default 0,
    suspected_at      timestamptz,
    suspicion         text,
    primary key (number),
    constraint epochs_one_per_id unique (id),
    constraint epochs_cause_check check (cause in ('enrolled', 'adopted', 'moved')),
    constraint epochs_actor_is_named check (btrim(actor) <> ''),
    constraint epochs_suspicions_have_a_reason check ((suspected_at is null) = (suspicion is null))
);
create trigger epochs_are_facts
    before update of number, id, installation_id, cause, system_identifier, database_oid, database_name, table_oid, began_at, actor
    on tenancy.epochs
    for each row
    execute function tenancy.refuse_change('an epoch stays as it began');
create trigger epochs_are_never_removed
    before delete on tenancy.epochs
    for each row
    execute function tenancy.refuse_change('epochs are kept');
create trigger epochs_are_never_emptied
    before truncate on tenancy.epochs
    for each statement
    execute function tenancy.refuse_change('epochs are kept');

-- One row per witness: a process with sending roles counts its mark up every second while it runs, and keeps the last one that it saw
-- committed outside the database. `timeline` is the newest timeline on which the process has found nothing missing.
create table tenancy.process_marks (
    witness_id uuid        not null,
    epoch_id   uuid        not null,
    process    text        not null,
    mark       bigint      not null default 1,
    timeline   integer,
    marked_at  timestamptz not null default clock_timestamp(),
    stopped_at timestamptz,
    primary key (witness_id),
    constraint process_marks_belong_to_an_epoch foreign key (epoch_id) references tenancy.epochs (id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Which database this is. A server that does not say which cluster or timeline it is on is compared by the rest.
create function tenancy.database_identity(
    out system_identifier text, out database_oid bigint, out database_name text, out table_oid bigint, out timeline integer,
    out lsn pg_lsn)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    select database.oid::bigint, database.datname::text
      into strict database_oid, database_name
      from pg_database as database
     where database.datname = current_database();
    table_oid := 'tenancy.epochs'::regclass::oid::bigint;
    begin
        select control.system_identifier::text into system_identifier from pg_control_system() as control;
    exception when insufficient_privilege or feature_not_supported or undefined_function then
        system_identifier := '';
    end;
    begin
        lsn := pg_current_wal_flush_lsn();
        timeline := ('x' || left(pg_walfile_name(lsn), 8))::bit(32)::integer;
    exception when insufficient_privilege or feature_not_supported or undefined_function then
        timeline := null;
    end;
end
$$;

-- Why nothing may be sent from this database; null when sending is allowed. A database on which no sending process ever started has
-- sent nothing.
create function tenancy.sending_refusal()
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_epoch record;
    v_system text;
    v_database bigint;
begin
    select epoch.system_identifier, epoch.database_oid, epoch.database_name, epoch.table_oid, epoch.suspicion
      into v_epoch
      from tenancy.epochs as epoch
     order by epoch.number desc
     limit 1;
    if not found then
        return null;
    end if;
    if v_epoch.suspicion is not null then
        return v_epoch.suspicion;
    end if;
    if v_epoch.system_identifier <> '' then
        select control.system_identifier::text into v_system from pg_control_system() as control;
        if v_system <> v_epoch.system_identifier then
            return format('the database was recorded in cluster %s, and this is cluster %s', v_epoch.system_identifier, v_system);
        end if;
    end if;
    select database.oid::bigint into v_database from pg_database as database where database.datname = current_database();
    if v_database <> v_epoch.database_oid then
        return format('it was recorded as database `%s` (oid %s), and this is database `%s` (oid %s)', v_epoch.database_name,
                      v_epoch.database_oid, current_database(), v_database);
    end if;
    if v_epoch.table_oid <> 'tenancy.epochs'::regclass::oid::bigint then
        return 'its tables were created again after it was recorded';
    end if;
    return null;
end
$$;

-- Refuses reservations on a restored copy, for every client. A process also states under which epoch and timeline it has found nothing
-- missing (`app.fence`); after a failover it must look again before it reserves.
create function tenancy.require_sending_allowed()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_refusal constant text := tenancy.sending_refusal();
    v_fence constant text := nullif(current_setting('app.fence', true), '');
begin
    if v_refusal is not null then
        raise exception 'restored copy: sending waits for adopt: %', v_refusal
            using errcode = 'PR002', hint = 'Run `postrider adopt`.';
    end if;
    if v_fence is not null
       and v_fence <> coalesce((select epoch.id::text from tenancy.epochs as epoch order by epoch.number desc limit 1), '')
                      || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    then
        raise exception 'the database changed its timeline or its epoch since this process last looked'
            using errcode = 'PR003', hint = 'The process looks again, and goes on when nothing is missing.';
    end if;
    return null;
end
$$;
create trigger channel_outbox_waits_for_adoption
    before insert on execution.channel_outbox
    for each statement
    execute function tenancy.require_sending_allowed();

-- Records the database as this installation, if none is recorded. Of several processes that start at once, one does it.
create function tenancy.enrol(p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id constant uuid := gen_random_uuid();
begin
    insert into tenancy.epochs
           (number, id, installation_id, cause, system_identifier, database_oid, database_name, table_oid, timeline, actor)
    select 1, v_id, v_id, 'enrolled', here.system_identifier, here.database_oid, here.database_name, here.table_oid, here.timeline,
           p_actor
      from tenancy.database_identity() as here
     where not exists (select from tenancy.epochs)
        on conflict (number) do nothing;
end
$$;

-- What a process compares with what it knows: the newest epoch, why sending is refused, where the log is, its own mark, whether the
-- epoch and the reservations that it knows are there, and which processes have not looked since the timeline changed. A process that had
-- stopped counting two minutes before the last mark of the old timeline had reserved nothing later that could be missing.
create function tenancy.read_installation(p_witness_id uuid, p_epoch_id uuid, p_reservation_ids uuid[])
returns table (
    installation_id uuid, epoch_id uuid, epoch_number integer, cause text, began_at timestamptz, refusal text, system_identifier text,
    database_oid bigint, database_name text, timeline integer, lsn bigint, mark bigint, knows_epoch boolean,
    has_reservations boolean, unconfirmed text[], last_mark_at timestamptz, all_stopped boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
        select epoch.installation_id, epoch.id, epoch.number, epoch.cause, epoch.began_at, tenancy.sending_refusal(),
               here.system_identifier, here.database_oid, here.database_name, here.timeline, (here.lsn - '0/0'::pg_lsn)::bigint,
               (select own.mark from tenancy.process_marks as own where own.witness_id = p_witness_id),
               p_epoch_id is null or exists (select from tenancy.epochs as known where known.id = p_epoch_id),
               not exists (select
                             from unnest(p_reservation_ids) as wanted (id)
                            where not exists (select from execution.channel_outbox as item where item.id = wanted.id)),
               array(select other.process
                       from tenancy.process_marks as other
                      where other.epoch_id = epoch.id
                        and other.witness_id is distinct from p_witness_id
                        and other.stopped_at is null
                        and other.timeline < here.timeline
                        and other.marked_at > (select max(old.marked_at) - interval '2 minutes'
                                                 from tenancy.process_marks as old
                                                where old.epoch_id = epoch.id
                                                  and old.timeline < here.timeline)
                      order by other.process),
               (select max(each.marked_at) from tenancy.process_marks as each where each.epoch_id = epoch.id),
               not exists (select from tenancy.process_marks as each where each.epoch_id = epoch.id and each.stopped_at is null)
          from tenancy.database_identity() as here
               left join (select newest.* from tenancy.epochs as newest order by newest.number desc limit 1) as epoch on true;
end
$$;

-- Counts the mark of a process up. `p_timeline` is the timeline on which the process has found nothing missing. Answers with the mark
-- and with the position of the log, which the commit of this mark lies behind.
create function tenancy.mark_process(
    p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean, out mark bigint, out lsn bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A mark that a crash may take back is none, whatever the login is set to.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    delete from tenancy.process_marks as old where old.marked_at < now() - interval '90 days' and old.witness_id <> p_witness_id;
    insert into tenancy.process_marks as known (witness_id, epoch_id, process, timeline, stopped_at)
    values (p_witness_id, p_epoch_id, p_process, p_timeline, case when p_is_stopping then now() end)
        on conflict (witness_id) do update
       set mark = known.mark + 1,
           epoch_id = excluded.epoch_id,
           process = excluded.process,
           timeline = excluded.timeline,
           marked_at = clock_timestamp(),
           stopped_at = excluded.stopped_at
    returning known.mark into mark;
    lsn := ((tenancy.database_identity()).lsn - '0/0'::pg_lsn)::bigint;
end
$$;

-- Confirms for a process that ended: what its witness knows is there.
create function tenancy.confirm_process(p_witness_id uuid, p_timeline integer)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    update tenancy.process_marks as known
       set timeline = p_timeline
     where known.witness_id = p_witness_id
       and known.timeline < p_timeline
$$;

-- Notes that the database lacks what a process knows to be committed. Sending waits for adopt from now on, for every process.
create function tenancy.suspect(p_epoch_id uuid, p_reason text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    update tenancy.epochs as epoch
       set suspected_at = now(),
           suspicion = left(p_reason, 2000)
     where epoch.id = p_epoch_id
       and epoch.suspected_at is null
$$;

-- What an adoption would change.
create function tenancy.count_unfinished(
    out reserved_items bigint, out begun_items bigint, out replies bigint, out notifications bigint, out schedules bigint,
    out firings bigint, out campaigns bigint, out events bigint, out job_runs bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from execution.channel_outbox as item where item.status = 'queued'),
           (select coalesce(sum(cardinality(job.item_ids)
                                - (select count(*) from execution.channel_outbox as item where item.job_id = job.id)), 0)::bigint
              from execution.job_queue as job
                   join execution.campaign_runs as run on run.id = job.run_id
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

-- Begins another epoch, in which this database is the installation. Whatever an adopted copy may have sent after it was taken is in
-- doubt from now on: reserved items, and items of unfinished jobs that have no row, which get one. Items of a run that is scheduled for
-- later cannot have been called. With the cause `moved` nothing is put in doubt. The caller commits; until then nothing has changed.
-- For members of the owner role alone.
create function tenancy.begin_epoch(p_cause text, p_reason text, p_actor text)
returns tenancy.epochs
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    c_note constant text := 'adopted after a restore: it may have been called after the copy was taken';
    v_before tenancy.epochs;
    v_epoch tenancy.epochs;
    v_items bigint;
    v_more bigint;
    v_replies bigint;
    v_firings bigint;
    v_campaigns bigint;
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
    insert into tenancy.audit_log (actor, action, subject, note)
    values (p_actor, 'installation.' || p_cause, 'installation:' || v_epoch.installation_id, left(p_reason, 2000));
    if p_cause <> 'adopted' then
        return v_epoch;
    end if;

    -- Jobs first, as everywhere. Their holders are gone; what they held burns no attempt.
    update execution.job_queue as job
       set status = 'queued',
           attempts = greatest(job.attempts - 1, 0),
           locked_by = null,
           locked_at = null,
           run_after = case when phase.status = 'paused' then 'infinity'::timestamptz else now() end
      from execution.campaign_runs as run
           join execution.campaign_phases as phase on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.status = 'locked'
       and run.id = job.run_id;

    with doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = now(),
               error = coalesce(item.error, c_note)
         where item.status = 'queued'
     returning item.id, item.tenant_id, item.run_id, item.job_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select doubted.tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_actor, 'item.adopted', c_note
      from doubted;
    get diagnostics v_items = row_count;
    -- Their resolvers are gone, and the quiet time begins anew: the original may have repeated a call.
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = now()
     where doubt.held_by is not null or doubt.next_look_at > now();

    with begun as (
        insert into execution.channel_outbox
               (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key, status, error,
                reserved_by, attempt, created_at, in_doubt_since)
        select job.tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
               case run.channel when 'email' then lead.email when 'voice' then lead.phone end,
               execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'queued', c_note,
               'adoption-' || v_epoch.id, job.attempts, greatest(run.created_at, v_epoch.copied_after), now()
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
               cross join unnest(job.item_ids) as item (id)
               left join execution.leads as lead on lead.tenant_id = job.tenant_id and lead.id = item.id
         where job.status in ('queued', 'failed')
           and (run.scheduled_for is null or run.scheduled_for <= now())
            on conflict (tenant_id, workspace_id, idempotency_key) do nothing
     returning id, tenant_id, run_id, job_id
    ), followed as (
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider)
        select begun.id, begun.tenant_id, account.id, account.provider
          from begun
               join execution.campaign_runs as run on run.id = begun.run_id
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
            on conflict do nothing
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select begun.tenant_id, begun.run_id, begun.job_id, begun.id, p_actor, 'item.adopted', c_note
      from begun;
    get diagnostics v_more = row_count;

    -- The original may have started the next phase, under keys that this database does not have: a person starts it.
    with stopped as (
        update execution.campaigns as campaign
           set auto_advance = false,
               not_advanced = 'adopted after a restore: its next phase may have been started from the original; start it by hand'
         where campaign.auto_advance
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status <> 'not_started')
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status = 'not_started')
     returning campaign.tenant_id, campaign.id
    )
    insert into execution.campaign_audit_log (tenant_id, campaign_id, actor, action, note)
    select stopped.tenant_id, stopped.id, p_actor, 'campaign.adopted', 'its next phase is started by hand'
      from stopped;
    get diagnostics v_campaigns = row_count;
    update execution.campaign_phases set due = null where due = 'advance';

    -- Replies are looked up first where the provider can be asked.
    update channels.channel_outbox as reply
       set status = 'pending',
           in_doubt_since = coalesce(reply.in_doubt_since, now()),
           locked_at = null,
           locked_by = null,
           next_attempt_at = case reply.status when 'sending' then now() else reply.next_attempt_at end,
           last_error = c_note,
           updated_at = now()
     where reply.status in ('pending', 'sending');
    get diagnostics v_replies = row_count;
    update jobs.alert_notifications as notification
       set first_called_at = coalesce(notification.first_called_at, greatest(notification.created_at, v_epoch.copied_after)),
           called_at = now(),
           in_doubt_since = coalesce(notification.in_doubt_since, now()),
           claims = notification.claims + 1,
           last_error = c_note,
           updated_at = now()
     where notification.status = 'queued';

    update jobs.schedule_firings as firing
       set outcome = 'skipped',
           reason = c_note,
           decided_at = now()
     where firing.outcome = 'waiting';
    get diagnostics v_firings = row_count;

    update tenancy.epochs as epoch
       set items_in_doubt = v_items + v_more,
           replies_in_doubt = v_replies,
           firings_skipped = v_firings,
           campaigns_stopped = v_campaigns
     where epoch.number = v_epoch.number
    returning epoch.* into v_epoch;
    return v_epoch;
end
$$;

-- Moves a schedule past the times at which the original may have fired it. For members of the owner role alone.
create function tenancy.skip_firings(
    p_tenant_id uuid, p_schedule_id uuid, p_due timestamptz, p_version integer, p_skipped_at timestamptz, p_next_fire_at timestamptz)
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

-- The launch certificate, as before, except that nothing is certified about second calls on a restored copy.
create or replace function execution.verify_launch(p_run_id uuid)
returns table (
    run_id uuid, run_status text, intended bigint, sent bigint, called bigint, posted bigint, failed bigint, skipped bigint,
    in_doubt bigint, missing bigint, run_is_terminal boolean, every_item_is_terminal boolean, duplicates_are_impossible boolean,
    launched boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if not exists (select from execution.campaign_runs as run where run.id = p_run_id and tenancy.may_act_for(run.tenant_id)) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        with items as (
            select count(*) filter (where item.status = 'sent') as sent,
                   count(*) filter (where item.status = 'called') as called,
                   count(*) filter (where item.status = 'posted') as posted,
                   count(*) filter (where item.status = 'failed') as failed,
                   count(*) filter (where item.status = 'skipped') as skipped,
                   count(*) filter (where item.status = 'queued') as in_doubt,
                   count(distinct item.recipient_id) as known
              from execution.channel_outbox as item
             where item.run_id = p_run_id
        ), guarded as (
            -- The wall is the unique key, the triggers that keep rows and their keys where they are, and the trigger that reserves
            -- nothing on a restored copy.
            select count(*) = 6 and tenancy.sending_refusal() is null as holds
              from (select from pg_constraint as wall
                     where wall.conrelid = 'execution.channel_outbox'::regclass
                       and wall.conname = 'channel_outbox_one_row_per_key'
                       and pg_get_constraintdef(wall.oid) = 'UNIQUE (tenant_id, workspace_id, idempotency_key)'
                     union all
                    select from pg_trigger as wall
                     where wall.tgrelid = 'execution.channel_outbox'::regclass
                       and wall.tgname in ('channel_outbox_ends_are_final', 'channel_outbox_reservations_are_facts',
                                           'channel_outbox_is_never_removed_from', 'channel_outbox_is_never_emptied',
                                           'channel_outbox_waits_for_adoption')
                       and wall.tgenabled in ('O', 'A')) as walls
        )
        select run.id,
               run.status,
               run.intended::bigint,
               items.sent, items.called, items.posted, items.failed, items.skipped, items.in_doubt,
               run.intended - items.known,
               run.status in ('completed', 'partial', 'failed'),
               items.in_doubt = 0 and run.intended = items.known,
               guarded.holds,
               run.status in ('completed', 'partial', 'failed') and items.in_doubt = 0 and run.intended = items.known
               and guarded.holds
          from execution.campaign_runs as run, items, guarded
         where run.id = p_run_id;
end
$$;

-- What a certificate of a run is based on: which database this is and since when, why nothing is certified on a restored copy, when a
-- process last compared the database with its witness, and how many items of the run an adoption put in doubt.
create function execution.launch_evidence(p_run_id uuid)
returns table (
    installation_id uuid, epoch integer, cause text, epoch_began_at timestamptz, system_identifier text, database_name text,
    refusal text, last_mark_at timestamptz, items_adopted bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if not exists (select from execution.campaign_runs as run where run.id = p_run_id and tenancy.may_act_for(run.tenant_id)) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        select epoch.installation_id, epoch.number, epoch.cause, epoch.began_at, here.system_identifier, here.database_name,
               tenancy.sending_refusal(),
               (select max(known.marked_at) from tenancy.process_marks as known where known.epoch_id = epoch.id),
               (select count(*)
                  from execution.campaign_runs as run
                       join execution.campaign_audit_log as line on line.tenant_id = run.tenant_id and line.run_id = run.id
                 where run.id = p_run_id
                   and line.action = 'item.adopted')
          from tenancy.database_identity() as here
               left join (select newest.* from tenancy.epochs as newest order by newest.number desc limit 1) as epoch on true;
end
$$;

revoke all on function
    tenancy.database_identity(), tenancy.sending_refusal(), tenancy.require_sending_allowed(), tenancy.enrol(text),
    tenancy.read_installation(uuid, uuid, uuid[]), tenancy.mark_process(uuid, uuid, text, integer, boolean),
    tenancy.confirm_process(uuid, integer), tenancy.suspect(uuid, text), tenancy.count_unfinished(),
    tenancy.begin_epoch(text, text, text),
    tenancy.skip_firings(uuid, uuid, timestamptz, integer, timestamptz, timestamptz),
    execution.verify_launch(uuid), execution.launch_evidence(uuid)
    from public;
grant execute on function
    tenancy.enrol(text), tenancy.read_installation(uuid, uuid, uuid[]), tenancy.mark_process(uuid, uuid, text, integer, boolean),
    tenancy.confirm_process(uuid, integer), tenancy.suspect(uuid, text)
    to postrider_worker;
grant execute on function
    execution.launch_evidence(uuid)
    to postrider_app, postrider_worker, postrider_read;
