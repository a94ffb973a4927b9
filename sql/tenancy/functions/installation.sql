-- The identity of the installation: processes compare the database with their witness, so that a restored copy sends
-- nothing before it is adopted (decision 0019).

create or replace function tenancy.database_identity(
    out system_identifier text, out database_oid bigint, out database_name text, out table_oid bigint,
    out timeline integer, out lsn pg_lsn)
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
revoke all on function tenancy.database_identity() from public;
comment on function tenancy.database_identity() is
    'Returns the cluster, database, table and timeline of this database, and the flushed log position. A value that '
    'the server does not reveal is empty or null, and comparisons use the others.';

create or replace function tenancy.sending_refusal()
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
revoke all on function tenancy.sending_refusal() from public;
comment on function tenancy.sending_refusal() is
    'Returns the reason why this database may not send, or null if sending is allowed. A database without an epoch '
    'may send: no process has sent from it yet.';

create or replace function tenancy.require_sending_allowed()
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
revoke all on function tenancy.require_sending_allowed() from public;
comment on function tenancy.require_sending_allowed() is
    'Trigger function: refuses reservations on a restored copy, for every client. If `app.fence` is set, it also '
    'refuses reservations of a process that has not compared the current epoch and timeline with its witness.';

create or replace function tenancy.enrol(p_actor text)
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
revoke all on function tenancy.enrol(text) from public;
grant execute on function tenancy.enrol(text) to postrider_worker;
comment on function tenancy.enrol(text) is
    'Begins the first epoch, if there is none. If several processes start at once, one of them does it.';

-- An id of an item contains the time of its reservation. A copy that was taken before that time has archived only runs that had
-- ended at least a day before the copy was taken, so it cannot pass for a database that deleted the item.
create or replace function tenancy.was_deleted(p_tenant_id uuid, p_item_id uuid)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select
                     from tenancy.audit_log as line
                    where line.tenant_id = tenancy.system_tenant_id()
                      and line.subject = 'tenant:' || p_tenant_id
                      and line.action = 'tenant.removed')
           or exists (select
                        from execution.run_archives as archive
                             join execution.campaign_runs as run
                               on run.tenant_id = archive.tenant_id and run.id = archive.run_id
                       where archive.tenant_id = p_tenant_id
                         and run.finished_at + interval '1 hour'
                             > to_timestamp(('x' || left(replace(p_item_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0))
$$;
revoke all on function tenancy.was_deleted(uuid, uuid) from public;
comment on function tenancy.was_deleted(uuid, uuid) is
    'Whether the database may lack this item because its run was archived or its tenant removed, and not because the database is '
    'a restored copy. Clocks may differ by an hour.';

create or replace function tenancy.read_installation(
    p_witness_id uuid, p_epoch_id uuid, p_reservation_tenant_ids uuid[], p_reservation_ids uuid[])
returns table (
    installation_id uuid, epoch_id uuid, epoch_number integer, cause text, began_at timestamptz, refusal text,
    system_identifier text, database_oid bigint, database_name text, timeline integer, lsn bigint, mark bigint,
    knows_epoch boolean, has_reservations boolean, unconfirmed text[], last_mark_at timestamptz, all_stopped boolean)
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
                             from unnest(p_reservation_tenant_ids, p_reservation_ids) as wanted (tenant_id, id)
                            where not exists (select
                                                from execution.channel_outbox as item
                                               where item.tenant_id = wanted.tenant_id
                                                 and item.id = wanted.id)
                              and not tenancy.was_deleted(wanted.tenant_id, wanted.id)),
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
revoke all on function tenancy.read_installation(uuid, uuid, uuid[], uuid[]) from public;
grant execute on function tenancy.read_installation(uuid, uuid, uuid[], uuid[]) to postrider_worker;
comment on function tenancy.read_installation(uuid, uuid, uuid[], uuid[]) is
    'Returns the facts that a process compares with its witness: the newest epoch, the refusal, the log position, its '
    'own mark, whether the epoch and the reservations that it knows exist, and the processes that have not confirmed '
    'the current timeline.';

create or replace function tenancy.mark_process(
    p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean,
    out mark bigint, out lsn bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    -- A crash must not undo a mark that the process has seen, so the commit is synchronous whatever the login is set
    -- to.
    perform tenancy.require_durable_commit();
    delete from tenancy.process_marks as old where old.marked_at < v_now - interval '90 days' and old.witness_id <> p_witness_id;
    insert into tenancy.process_marks as known (witness_id, epoch_id, process, timeline, stopped_at)
    values (p_witness_id, p_epoch_id, p_process, p_timeline, case when p_is_stopping then v_now end)
        on conflict (witness_id) do update
       set mark = known.mark + 1,
           epoch_id = excluded.epoch_id,
           process = excluded.process,
           timeline = excluded.timeline,
           marked_at = v_now,
           stopped_at = excluded.stopped_at
    returning known.mark into mark;
    lsn := ((tenancy.database_identity()).lsn - '0/0'::pg_lsn)::bigint;
end
$$;
revoke all on function tenancy.mark_process(uuid, uuid, text, integer, boolean) from public;
grant execute on function tenancy.mark_process(uuid, uuid, text, integer, boolean) to postrider_worker;
comment on function tenancy.mark_process(uuid, uuid, text, integer, boolean) is
    'Increments the mark of a process. `p_timeline` is the timeline on which the process found nothing missing. '
    'Returns the mark and a log position before the commit of this mark.';

create or replace function tenancy.confirm_process(p_witness_id uuid, p_timeline integer)
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
revoke all on function tenancy.confirm_process(uuid, integer) from public;
grant execute on function tenancy.confirm_process(uuid, integer) to postrider_worker;
comment on function tenancy.confirm_process(uuid, integer) is
    'Confirms a timeline on behalf of a process that has ended: the database has everything that its witness knows.';

create or replace function tenancy.suspect(p_epoch_id uuid, p_reason text)
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
revoke all on function tenancy.suspect(uuid, text) from public;
grant execute on function tenancy.suspect(uuid, text) to postrider_worker;
comment on function tenancy.suspect(uuid, text) is
    'Records that the database lacks something that a process saw committed. From then on no process sends before the '
    'database is adopted.';
